"""An environment that only simulators have: settings that act on environments which Tidemill makes are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.envs.settings import EnvSettings
from tidemill.settings.check import refuse

_INSTEAD: Mapping[str, str] = {
    "vector": "or leave env.spaces out",
    **dict.fromkeys(("max_episode_steps", "max_evaluation_steps"), "and let the simulators truncate their episodes"),
    **dict.fromkeys(("step_timeout_s", "reset_timeout_s"), "and set inference.simulator_timeout_s"),
    **dict.fromkeys(
        ("on_failure", "max_restarts", "restart_backoff_s", "isolate"), "and let the simulators restart what fails"
    ),
    **dict.fromkeys(("flatten", "observation_indices"), "and declare and send the observations that the policy sees"),
    "joint_actions": "and declare num_actions, one for each combination",
}
"""By setting, what to do after it has its default again."""

_INSTEAD_WITHOUT_GOALS: Mapping[str, str] = {
    "kwargs": "and give them to the simulators",
    "action_mask": "and set masks_actions in env.spaces, so that the simulators send the masks",
}
"""The same for those that `table.hindsight` reads, which makes env.id to compute rewards."""


def check_simulated_env(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError, with a line for each, if settings have no effect because only simulators have the env."""
    env, table = (getattr(settings, name, None) for name in ("env", "table"))
    if env is None or not env.spaces:
        return
    has_goals = table is None or table.hindsight
    default, unread = EnvSettings(), _INSTEAD if has_goals else {**_INSTEAD, **_INSTEAD_WITHOUT_GOALS}
    refuse(
        f"env.{name} is {value!r}, which has no effect with env.spaces: set it to {usual!r}, {instead}"
        for name, instead in unread.items()
        if (value := getattr(env, name)) != (usual := getattr(default, name))
    )
