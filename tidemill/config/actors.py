"""Settings of actors that their names and streams need."""

from __future__ import annotations

from typing import Any

from tidemill.replay.limits import MAX_ENV_COUNT
from tidemill.settings.check import check_that, is_safe_name


def check_actors(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if an actor has too many environments, or the launcher would give it a name that is too long.

    How many actors there are is known where the launcher's settings are.
    """
    actor, env = (getattr(settings, name, None) for name in ("actor", "env"))
    if actor is None or env is None:
        return
    check_that(
        env.num_envs <= MAX_ENV_COUNT,
        f"env.num_envs is {env.num_envs}, allowed: at most {MAX_ENV_COUNT}; start more actors with fewer environments "
        "each",
    )
    launched = getattr(getattr(settings, "launcher", None), "actors", 0)
    last = f"-{launched - 1}"
    check_that(
        not (launched and actor.id) or is_safe_name(actor.id + last),
        f"actor.id is {actor.id!r}, allowed: at most {128 - len(last)} characters, because launcher.actors is "
        f"{launched} and each actor's number is added",
    )
