"""Former names of settings, so that an old file or command gets an error that names the new one."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import ConfigError

RENAMED = {
    "actor.max_unacknowledged_chunks": "actor.max_in_flight_chunks",
    "agent.actor_every": "agent.policy_delay",
    "agent.greedy_share": "agent.greedy_fraction",
    "agent.max_td_error": "agent.huber_delta",
    "agent.noise.greedy_share": "agent.noise.greedy_fraction",
    "agent.policy_average": "agent.actor_ema_decay",
    "agent.random_steps": "agent.start_steps",
    "agent.target_every": "agent.target_update_period",
    "agent.target_noise_limit": "agent.noise_clip",
    "env.observed": "env.observation_indices",
    "launcher.learner_reserve": "launcher.fork_services",
    "launcher.learner_standby": "launcher.fork_services",
    "table.importance_exponent": "table.importance_sampling_exponent",
    "table.importance_exponent_final": "table.importance_sampling_exponent_final",
    "table.importance_steps": "table.importance_sampling_steps",
}
"""Former name to present name, both with their section."""


def check_setting_name(name: str) -> None:
    """Raise ConfigError that gives the present name of a setting, e.g. `agent.target_every`, if it was renamed."""
    if name in RENAMED:
        raise ConfigError(f"setting {name!r} is called {RENAMED[name]!r} now")


def check_option_names(arguments: Sequence[str]) -> None:
    """Raise ConfigError that gives the present name of a renamed setting among command-line options."""
    for argument in arguments:
        option, _, _ = argument.partition("=")
        former = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and former in RENAMED:
            present = RENAMED[former].replace("_", "-")
            raise ConfigError(f"option {option} is called --{present} now")
