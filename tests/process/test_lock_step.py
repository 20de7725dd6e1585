"""A deterministic run of real processes: a seed gives the same parameters, whatever happens to the processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.lock_step import lock_step_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_UPDATES = 512
_SETTINGS: dict[str, Any] = {
    "run": {"max_learner_steps": _UPDATES, "round_steps": 32},
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [16], "dueling": False, "batch_size": 16},
    "table": {"min_size": 200, "max_items": 1_000},
    "learner": {"updates_per_env_step": 0.25},
    "actor": {"max_env_steps_per_s": 400.0},
}


def _digest(folder: Path, *killed: str, seed: int = 1, settings: Mapping[str, Any] = _SETTINGS) -> str:
    """Return the digest of a run in which each of some processes was killed and started again, one after the other."""
    with lock_step_cluster(folder, settings, seed) as cluster:
        cluster.start_all()
        for number, name in enumerate(killed):
            cluster.reach(_UPDATES * (number + 1) // (len(killed) + 3))
            cluster.kill(name)
            cluster.start(name)
        learner_steps, digest = cluster.digest()
    assert learner_steps == _UPDATES
    return digest


def test_same_seed_gives_the_same_parameters_and_another_seed_others(tmp_path: Path) -> None:
    """Two actors, two runs: what the machine does meanwhile changes no bit."""
    first = _digest(tmp_path / "first")
    assert _digest(tmp_path / "second") == first
    assert _digest(tmp_path / "killed", "actor-1", "replay", "learner") == first
    assert _digest(tmp_path / "other", seed=2) != first


def test_prioritized_replay_gives_the_same_parameters_in_spite_of_kills(tmp_path: Path) -> None:
    """Priorities that a killed replay service has lost are sent again before anything is drawn."""
    settings = {**_SETTINGS, "table": {**_SETTINGS["table"], "sampler": "prioritized"}}
    first = _digest(tmp_path / "first", settings=settings)
    assert _digest(tmp_path / "killed", "replay", "actor-0", "learner", settings=settings) == first
