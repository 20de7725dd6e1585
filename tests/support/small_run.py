"""Settings of a run of CartPole that takes seconds: enough to see that every part of a cluster works."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [16], "dueling": False, "batch_size": 16},
    "table": {"min_size": 100, "max_items": 10_000},
    "learner": {"updates_per_env_step": 0.25, "publish_every": 20},
    "actor": {"max_env_steps_per_s": 100.0},
    "evaluator": {"episodes": 2, "num_envs": 2, "min_interval_s": 0.2, "video": False},
    "launcher": {"view": "plain"},
}


def small_run(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with more of them in these sections."""
    return _SMALL | {name: _SMALL.get(name, {}) | more for name, more in sections.items()}
