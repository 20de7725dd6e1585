"""Settings that a run with simulators as clients needs."""

from __future__ import annotations

from typing import Any

from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import LearnsOnPolicy


def check_simulators(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if simulators may connect and cannot act for the algorithm, in the sections of a process."""
    inference, agent = (getattr(settings, name, None) for name in ("inference", "agent"))
    if inference is None or agent is None or not inference.simulators:
        return
    algorithm = agent.algorithm
    if not isinstance(agent, LearnsOnPolicy):
        return
    raise ConfigError(
        f"inference.simulators is {inference.simulators}, but agent.algorithm {algorithm!r} learns from its own "
        "newest items, and simulators cannot wait for a version of the parameters: use an algorithm that learns from a "
        "replay, such as dqn, sac or td3"
    )
