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


def _digest(folder: Path, *ended: str, seed: int = 1, settings: Mapping[str, Any] = _SETTINGS) -> str:
    """Return the digest of a run; processes are killed on the way, or with `stop` stopped, and started again."""
    with lock_step_cluster(folder, settings, seed) as cluster:
        cluster.start_all()
        for number, words in enumerate(ended):
            cluster.reach(_UPDATES * (number + 1) // (len(ended) + 3))
            *stops, name = words.split()
            if stops:
                cluster.stop(name)
            else:
                cluster.kill(name)
            cluster.start(name)
        learner_steps, digest = cluster.digest()
    assert learner_steps == _UPDATES
    return digest


def test_seed_gives_the_same_parameters_whatever_happens_and_another_seed_others(tmp_path: Path) -> None:
    """Two actors: neither kills of every kind nor a stop in the middle of a round change a bit."""
    first = _digest(tmp_path / "first")
    assert _digest(tmp_path / "again", "actor-1", "replay", "learner", "stop learner") == first
    assert _digest(tmp_path / "other", seed=2) != first


def test_prioritized_replay_gives_the_same_parameters_in_spite_of_kills(tmp_path: Path) -> None:
    """Priorities that a killed replay service has lost are sent again before anything is drawn."""
    settings = {**_SETTINGS, "table": {**_SETTINGS["table"], "sampler": "prioritized"}}
    first = _digest(tmp_path / "first", settings=settings)
    assert _digest(tmp_path / "again", "replay", "actor-0", "stop learner", "learner", settings=settings) == first


def test_hindsight_draws_the_same_goals_in_spite_of_kills(tmp_path: Path) -> None:
    """The learner is stopped in the middle of a sample and decodes it again."""
    goals = {
        "env": {"id": "examples.bit_flip:BitFlip", "kwargs": {"bits": 6}, "num_envs": 2},
        "agent": {**_SETTINGS["agent"], "n_step": 1},
        "table": {**_SETTINGS["table"], "hindsight": 0.8, "hindsight_steps": 6},
    }
    settings = {**_SETTINGS, **goals}
    first = _digest(tmp_path / "first", settings=settings)
    assert _digest(tmp_path / "again", "stop learner", "actor-0", "learner", settings=settings) == first
