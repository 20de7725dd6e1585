"""A deterministic run of real processes: a seed gives the same parameters, whatever happens to the processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_service import fork_server
from tests.support.lock_step import lock_step_cluster
from tests.support.waiting import crowd
from tidemill.programs.fork_client import ForkClient

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_SLOWDOWN = max(1.0, crowd() / 2)
"""Of actors on a busy machine, where it is noticed later how far the learner is."""
_SETTINGS: dict[str, Any] = {
    "run": {"max_learner_steps": 256, "round_steps": 16},
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [16], "dueling": False, "batch_size": 16},
    "table": {"min_size": 200, "max_items": 500},
    "learner": {"updates_per_env_step": 0.25},
    # so slow that a process is killed before the run is over: a client connects again after up to a second
    "actor": {"max_env_steps_per_s": 200.0 / _SLOWDOWN, "log_every_s": 0.2},
}
_SLOW = {"actor": {"max_env_steps_per_s": 100.0 / _SLOWDOWN, "log_every_s": 0.2}}
_CONTINUOUS = {
    "env": {"id": "Pendulum-v1", "num_envs": 2},
    "run": {"max_learner_steps": 128, "round_steps": 16},
    **_SLOW,
}
_CASES: dict[str, dict[str, Any]] = {
    "prioritized hindsight": {  # a learner that is stopped in the middle of a sample decodes it again
        "env": {"id": "examples.bit_flip:BitFlip", "kwargs": {"bits": 6}, "num_envs": 2},
        "agent": {**_SETTINGS["agent"], "n_step": 1},
        "table": {**_SETTINGS["table"], "sampler": "prioritized", "hindsight": 0.8, "hindsight_steps": 6},
    },
    "sac normalized": {
        **_CONTINUOUS,
        "agent": {
            "algorithm": "sac",
            "start_steps": 100,
            "hidden_sizes": [16],
            "batch_size": 16,
            "normalize_observations": True,
            "normalize_rewards": True,
        },
    },
    "ddpg": {  # whose noise lasts over steps
        **_CONTINUOUS,
        "agent": {
            "algorithm": "ddpg",
            "start_steps": 100,
            "actor_sizes": [16],
            "critic_sizes": [16],
            "action_layer": 0,
            "batch_size": 16,
        },
    },
    "atari": {
        "run": {"max_learner_steps": 32, "round_steps": 8},
        "env": {"id": "ALE/Pong-v5", "num_envs": 2},
        "agent": {"algorithm": "dqn", "batch_size": 4, "hidden_sizes": [16], "dueling": False},
        "table": {**_SETTINGS["table"], "chunk_length": 8},
        "learner": {"updates_per_env_step": 0.0625},
        **_SLOW,
    },
}


@pytest.fixture(scope="module")
def other_server() -> Iterator[ForkClient]:
    """A fork server with a different seed of Python's hashes, which are those of all that it forks."""
    with fork_server({}) as server:
        yield server


def _digest(
    folder: Path,
    *ended: str,
    seed: int = 1,
    settings: Mapping[str, Any] = _SETTINGS,
    server: ForkClient | None = None,
) -> str:
    """Return the digest of a run; processes are killed on the way, or with `stop` stopped, and started again."""
    updates = settings["run"]["max_learner_steps"]
    with lock_step_cluster(folder, settings, seed, server) as cluster:
        cluster.start_all()
        for number, words in enumerate(ended):
            # in the first half: after a pause the actors make up to a second's decisions at full speed
            cluster.reach(updates * (number + 1) // (2 * (len(ended) + 3)))
            *stops, name = words.split()
            if stops:
                cluster.stop(name)
            else:
                cluster.kill(name)
            cluster.start(name)
        learner_steps, digest = cluster.digest()
    assert learner_steps == updates
    return digest


def test_process_with_other_settings_than_at_the_start_is_refused(tmp_path: Path) -> None:
    """Another seed, or another number of actors: a started learner and actor say so in one line each."""
    with lock_step_cluster(tmp_path / "cluster", _SETTINGS) as cluster:
        cluster.start_all()
        cluster.reach(1)
        for name in ("learner", "actor-1"):
            cluster.kill(name)
            said = cluster.refusal(name, "--run.seed", "2")
            assert "run.seed is 2, but was 1 when this run was started" in said
        assert "actor.count is 4, but was 2" in cluster.refusal("learner", "--actor.count", "4")


def test_seed_gives_the_same_parameters_whatever_happens_and_another_seed_others(
    tmp_path: Path, other_server: ForkClient
) -> None:
    """Two actors: neither kills of every kind nor a stop in the middle of a round change a bit."""
    first = _digest(tmp_path / "first")
    for actor in ("actor-0", "actor-1"):
        points = [json.loads(line) for line in (tmp_path / f"first/run/curves/{actor}.jsonl").read_text().splitlines()]
        decisions, updates = [[point[name] for point in points] for name in ("env_steps", "step")]
        assert decisions == sorted(set(decisions)), "the decisions of all actors"
        assert decisions[-1] > 500
        assert updates == sorted(updates)
        assert updates[-1] > 0
    assert _digest(tmp_path / "again", "actor-1", "replay", "learner", "stop learner", server=other_server) == first
    assert _digest(tmp_path / "other", seed=2) != first


@pytest.mark.parametrize("case", _CASES)
def test_algorithm_gives_the_same_parameters_in_spite_of_kills(
    tmp_path: Path, other_server: ForkClient, case: str
) -> None:
    """Priorities that a killed server has lost, continuous actions and their noise, images: all of it comes back."""
    settings = {**_SETTINGS, **_CASES[case]}
    first = _digest(tmp_path / "first", settings=settings)
    ended = ("replay", "actor-0", "stop learner", "learner")
    assert _digest(tmp_path / "again", *ended, settings=settings, server=other_server) == first
