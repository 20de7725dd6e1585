"""Checks that the agents' settings share."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.types import EnvSpec

_ALGORITHMS = {
    True: ("dqn", "r2d2", "sac_discrete", "ppo", "impala", "pqn"),
    False: ("sac", "td3", "ddpg", "d4pg", "ppo", "impala"),
}
"""Those that come with the project, by whether their actions are discrete."""


_SEVERAL_CHOICES = ("ppo", "impala")
"""Those that make several discrete choices at once."""


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ConfigError that names the field, its value and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"agent.{field} is {value!r}, but must be {allowed}")


def require_actions(algorithm: str, env_spec: EnvSpec, *, discrete: bool) -> None:
    """Raise ConfigError unless the environment's actions are of the kind that the algorithm chooses.

    Several discrete choices at once are refused: an algorithm that makes them does not ask here.
    """
    if env_spec.action_sizes:
        count = len(env_spec.action_sizes)
        joint = ", or env.joint_actions to true, which makes every combination one action" if discrete else ""
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {count} discrete choices at once: "
            f"set agent.algorithm to {' or '.join(_SEVERAL_CHOICES)}{joint}"
        )
    if env_spec.is_discrete != discrete:
        kind = "discrete" if env_spec.is_discrete else "continuous"
        fitting = " or ".join(_ALGORITHMS[env_spec.is_discrete])
        raise ConfigError(
            f"algorithm is {algorithm!r}, but the environment's actions are {kind}: set agent.algorithm to {fitting}"
        )
