"""Items of a table whose goals may be relabelled: the steps they cover and the settings that allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.config.table import TableSettings
from tidemill.errors import ConfigError
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import WindowSpec

_InitialPriority = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]]


def item_window(agent: AgentConfig, table: TableSettings, frame_stack: int) -> WindowSpec:
    """Return the steps of a stream that an item covers: those the agent needs and those that goals are taken from."""
    window = agent.window(frame_stack)
    return replace(window, steps=table.hindsight_steps) if table.hindsight else window


def first_priority(
    table: TableSettings, initial_priority: _InitialPriority
) -> float | Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]:
    """Return the first priority of items, or what computes it from their steps: that of the first transition.

    A relabelled item has that of its transition with the goal it was made with. No priority is 0: an item with it would
    never be drawn.

    Args:
        table: Settings of the table; without priorities all items are alike.
        initial_priority: `Policy.initial_priority` of the algorithm.
    """
    if table.sampler != "prioritized":
        return 1.0 + SMALLEST_PRIORITY

    def priority(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        seen = _FirstTransition(steps) if table.hindsight else steps
        return initial_priority(seen).astype(np.float64) + SMALLEST_PRIORITY

    return priority


class _FirstTransition(Mapping[str, NDArray[Any]]):
    """The first two steps of windows; a column is read when it is asked for."""

    def __init__(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self._steps = steps

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._steps[name][:2]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def check_hindsight(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if goals are to be relabelled and the sections that a process reads do not allow it."""
    agent, table, env, learner = (getattr(settings, name, None) for name in ("agent", "table", "env", "learner"))
    if agent is None or table is None or not table.hindsight:
        return
    window = agent.window(1)
    if window.stride != 1 or window.keep_all or window.history:
        raise ConfigError(
            f"table.hindsight is {table.hindsight:g}, but agent.algorithm {agent.algorithm!r} learns from sequences: "
            "goals are relabelled for algorithms of single transitions, such as sac, td3, ddpg and dqn, with "
            "agent.lstm_size 0"
        )
    if window.steps != 1:
        raise ConfigError(
            f"agent.n_step is {window.steps}, but must be 1 with table.hindsight: the rewards of later steps are not "
            "relabelled"
        )
    if getattr(agent, "normalize_rewards", False):
        raise ConfigError(
            "agent.normalize_rewards is True, but must be false with table.hindsight: relabelled goals change "
            "the returns of the episodes"
        )
    if env is not None and env.vector:
        raise ConfigError(
            f"env.vector is {env.vector!r}, but table.hindsight needs the compute_reward of one environment: name it "
            "by env.id"
        )
    if learner is not None and learner.mirror_mib and learner.mirror_device == "device":
        raise ConfigError(
            "learner.mirror_device is 'device', but table.hindsight relabels observations in host memory: set it to "
            "'auto' or 'host'"
        )
