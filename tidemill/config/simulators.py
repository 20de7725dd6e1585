"""Settings that a run with simulators as clients needs."""

from __future__ import annotations

from typing import Any

from tidemill.errors import ConfigError


def check_simulators(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if simulators may connect and cannot act for the algorithm, in the sections of a process."""
    inference, agent, learner = (getattr(settings, name, None) for name in ("inference", "agent", "learner"))
    if inference is None or agent is None or learner is None or not inference.simulators or learner.max_policy_lag < 0:
        return
    raise ConfigError(
        f"inference.simulators is {inference.simulators}, but learner.max_policy_lag is {learner.max_policy_lag} for "
        f"agent.algorithm {agent.algorithm!r}, and simulators cannot wait for a version of the parameters: set "
        "learner.max_policy_lag to -1 (of these algorithms only impala corrects for the age of an item), or use one "
        "that learns from a replay, such as dqn, sac or td3"
    )
