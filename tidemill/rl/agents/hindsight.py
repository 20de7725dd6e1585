"""Hindsight experience replay (Andrychowicz et al. 2017): transitions with a goal that their episode did achieve.

An item is a transition and the steps that follow it. Whoever samples it keeps the transition, and may replace its goal
by one achieved in a later step. NumPy only: it runs on decoder threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.rl.transitions import pad_behind
from tidemill.types import WindowSpec, part_column

if TYPE_CHECKING:
    from torch import Tensor

    from tidemill.rl.agents.interface import Agent, State, Update
    from tidemill.rl.process_group import ProcessGroup


ACHIEVED, DESIRED = part_column("achieved_goal"), part_column("desired_goal")
"""Columns of an environment with goals: the one that was achieved at a step's observation, and the one that counts."""


class GoalRewards(Protocol):
    """Rewards of an environment as pure functions of goals, called from several threads."""

    def reward(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Return the rewards, [B], of steps that achieved one goal where another was desired, [B, ...] both."""

    def terminated(self, achieved: Array, desired: Array) -> NDArray[np.bool_] | None:
        """True for each step that ends its episode, bool [B]; None if termination does not depend on goals."""


class Draws:
    """The random numbers of relabelling, [B] each.

    A batch's are seeded by what is in it: a sample that is decoded again, by a run in lock-step that resumes, gets the
    same goals, whichever thread decodes it and whatever was decoded before.
    """

    def __init__(self, seed: int, batch_size: int) -> None:
        """Take the seed, 0 or more, and how many items are a batch of those decoded together."""
        self._seed, self._batch_size = seed, batch_size

    def draw(self, content: Array, later: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return for each item a number from [0, 1), and one of 0 .. `later` - 1.

        Args:
            content: Something of each item, [B, ...].
            later: How many steps to draw from, [B], each at least 1.
        """
        starts = range(0, len(later), self._batch_size)
        parts = [slice(start, start + self._batch_size) for start in starts]
        drawn = [self._draw(content[part], later[part]) for part in parts]
        return np.concatenate([chance for chance, _ in drawn]), np.concatenate([step for _, step in drawn])

    def _draw(self, content: Array, later: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        digest = hashlib.blake2b(np.ascontiguousarray(content).tobytes(), digest_size=16).digest()
        rng = np.random.default_rng([self._seed, *np.frombuffer(digest, "<u4").tolist()])
        return rng.random(len(later)), rng.integers(later)


def relabelled(
    columns: Mapping[str, Array],
    index: NDArray[np.int64],
    history: int,
    goals: GoalRewards,
    fraction: float,
    draws: Draws,
) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """Return the transitions of a batch of longer windows, most of them with a goal achieved later in their episode.

    The goal is the one achieved at a uniformly drawn observation after the action, to the end of the episode or of the
    window (strategy `future`, ibid., section 3.3). The reward is that of the new goal, and so is `terminated` if it
    depends on goals. A transition whose next observation is not stored, as after a lost life, keeps its goal.

    Args:
        columns: As of `tidemill.rl.transitions.transitions`, with those of `ACHIEVED` and `DESIRED`; not written to.
        index: Rows of each window, oldest first, [B, history + 1 + H] for goals of up to H steps later.
        history: Rows before the action.
        goals: What the environment makes of goals.
        fraction: Probability that an item gets another goal.
        draws: Gives the random numbers.

    Returns:
        The columns of the transitions alone, [B * (history + 2), ...], and the rows of each, [B, history + 2].
    """
    index = pad_behind(index, history)
    after = index[:, history + 1 :]
    in_episode = ~np.logical_or.accumulate(columns["is_first"][after], axis=1)  # [B, H]
    in_episode &= np.diff(after, axis=1, prepend=-1) != 0  # not what pads a short window
    later = in_episode.sum(axis=1)
    kept = index[:, : history + 2]
    of_items = {name: column.take(kept, axis=0) for name, column in columns.items()}  # copies
    chance, step = draws.draw(of_items[ACHIEVED], np.maximum(later, 1))
    chosen = np.flatnonzero((chance < fraction) & (later > 0))
    if len(chosen):
        goal = columns[ACHIEVED].take(after[chosen, step[chosen]], axis=0)
        achieved = of_items[ACHIEVED][chosen, history + 1]
        of_items[DESIRED][chosen] = goal[:, None]  # in every observation of the item
        of_items["reward"][chosen, history] = goals.reward(achieved, goal)
        if (terminated := goals.terminated(achieved, goal)) is not None:
            of_items["terminated"][chosen, history] = terminated
    flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in of_items.items()}
    return flat, np.arange(kept.size).reshape(kept.shape)


class HindsightAgent:
    """An agent of single transitions whose items are longer windows, from which it is given relabelled transitions."""

    def __init__(self, agent: Agent, window: WindowSpec, goals: GoalRewards, fraction: float, draws: Draws) -> None:
        """Wrap an agent.

        Args:
            agent: Learns from windows of one step.
            window: Of the items: the same history, and as many steps as a goal may lie ahead.
            goals: What the environment makes of goals.
            fraction: Probability that an item gets another goal.
            draws: Gives the random numbers.
        """
        assert agent.window.steps == 1, "hindsight is for agents of single transitions"
        self.window, self.recurrent_state_size = window, agent.recurrent_state_size
        self._agent, self._goals, self._fraction, self._draws = agent, goals, fraction, draws

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return the agent's batch of relabelled transitions; see `relabelled`."""
        rows = relabelled(columns, index, self.window.history, self._goals, self._fraction, self._draws)
        return self._agent.decode(*rows)

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._agent.set_process_group(group)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make one update."""
        return self._agent.update(batch, weight)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the tensors that `Policy.load` wants."""
        return self._agent.policy_state()

    def state_dict(self) -> State:
        """Return all that is needed to resume exactly; relabelling keeps nothing."""
        return self._agent.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._agent.load_state_dict(state)
