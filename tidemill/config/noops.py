"""No-op starts, which only an Atari game has."""

from __future__ import annotations

from typing import Any

from tidemill.envs.settings import EnvSettings
from tidemill.settings.check import check


def check_noops(settings: Any) -> None:  # noqa: ANN401 - the dataclass of any process
    """Raise ConfigError if an evaluator is to begin episodes with no-ops in what is not an Atari game."""
    evaluator, env = (getattr(settings, name, None) for name in ("evaluator", "env"))
    if evaluator is None or env is None or env.is_atari:
        return
    allowed = f"nothing with {env.named_by}, as it is for ALE/ games alone"
    check(evaluator.noop_max in (None, EnvSettings.noop_max), "evaluator.noop_max", evaluator.noop_max, allowed)
