"""`learner.max_policy_lag` on a cluster of real processes: every item keeps it, and none is left out.

With a bound of 0 actors have the learner's very parameters, so that what they did can be held against what it finds.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.learner_cluster import LearnerCluster, LearnerThread, Process, learner_cluster
from tests.support.waiting import wait_until
from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.ppo import PPOAgent
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.training.trainer import Trainer

pytestmark = pytest.mark.process

UPDATES, ACTORS, ENVS, UNROLL, LENGTH = 16, 2, 2, 5, 7
_MANY = 200
"""Updates that take seconds."""


class Recorder:
    """Everything that a learner of this process trains on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Listen to the trainer and to the agent; both work as usual."""
        self.item_versions: list[NDArray[np.float64]] = []
        self.observations: list[NDArray[np.float32]] = []
        self.divergences: list[float] = []
        """Of the policy that acted from the learner's, in each batch."""
        self.forgetful_divergences: list[float] = []
        """The same where the learner does not get what a recurrent policy remembered."""
        record, update = Trainer._record, PPOAgent.update

        def recorded(trainer: Trainer, batch: Batch, now: float) -> None:
            self.item_versions.append(batch.params_versions)
            record(trainer, batch, now)

        def updated(agent: PPOAgent, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
            self.observations.append(batch["observation"].numpy().copy())
            if agent.recurrent_state_size:
                self.divergences.append(_divergence(agent, batch))
                forgotten = {"recurrent_state": torch.zeros_like(batch["recurrent_state"])}
                self.forgetful_divergences.append(_divergence(agent, {**batch, **forgotten}))
            return update(agent, batch, weight)

        monkeypatch.setattr(Trainer, "_record", recorded)
        monkeypatch.setattr(PPOAgent, "update", updated)


def _divergence(agent: PPOAgent, batch: Mapping[str, Tensor]) -> float:
    with torch.no_grad():
        return float(agent.loss(agent.samples(batch, torch.ones(len(batch["reward"]))))[1]["kl"])


class Run(NamedTuple):
    """A run that has been started."""

    learner: LearnerThread
    replay: Process
    actors: tuple[Process, ...]


def run(cluster: LearnerCluster, lag: int, end: str, *, updates: int = UPDATES, **agent: float) -> Run:
    """Start a run that trains to the end, after so many updates; `agent` are more of its settings."""
    settings: dict[str, Any] = {
        "run": {"max_learner_steps": updates, "root": str(cluster.folder), "name": "test"},
        "cluster": {"replay": [cluster.replay], "params": cluster.params},
        "env": {
            "id": "tests.support.envs:counting", "kwargs": {"length": LENGTH, "end": end}, "num_envs": ENVS
        },
        "agent": {
            "algorithm": "ppo", "hidden_sizes": [8], "unroll": UNROLL, "batch_size": ENVS * ACTORS, "minibatches": 1,
            **agent
        },
        "table": {"sampler": "fifo", "min_size": 1, "max_items": 64, "chunk_length": 3},
        "learner": {
            "updates_per_env_step": 0, "publish_every": 1, "publish_half": False, "max_policy_lag": lag,
            "log_every_s": 1
        },
        "actor": {"count": ACTORS},
    }  # fmt: skip
    file = cluster.folder / "config.json"  # JSON is YAML
    file.write_text(json.dumps(settings))
    replay = cluster.start_replay()
    cluster.start_params()
    learner = cluster.keep(LearnerThread(["--config", str(file), "--learner.server.address", cluster.learner]))
    names = [("--actor.id", f"actor-{index}", "--actor.index", str(index)) for index in range(ACTORS)]
    actors = [cluster.start("tidemill.services.actor", ["--config", str(file), *each]) for each in names]
    return Run(learner, replay, tuple(actors))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lag, end", [(0, "truncated"), (2, "terminated")])
def test_every_item_keeps_the_bound_and_none_is_left_out(
    lag: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No item is used more updates after its version than allowed; each stream is used whole, from its first row on.

    Episodes have a fixed length, and an observation names the step within its episode. If streams are used without a
    gap, every step of an episode comes as often as any other, except in each stream's unfinished last one: what would
    drop items, or end episodes early, would favour some.
    """
    recorder = Recorder(monkeypatch)
    with learner_cluster(tmp_path) as cluster:
        assert run(cluster, lag, end).learner.wait(200.0) is None
        versions = cluster.params_client().list_versions().versions
    steps_behind = {version.version: version.metadata.learner_steps for version in reversed(versions)}
    lags = [
        update - steps_behind[int(version)] for update, items in enumerate(recorder.item_versions) for version in items
    ]
    assert len(lags) == UPDATES * ENVS * ACTORS
    assert min(lags) >= 0
    assert max(lags) <= lag, lags
    assert lag == 0 or max(lags) > 0  # actors did not wait for nothing
    seen = np.concatenate(recorder.observations)  # [items, U + 1, 2]
    counts = np.bincount(seen[..., 1].astype(np.int64).ravel(), minlength=LENGTH)
    streams = ENVS * ACTORS
    assert counts.max() - counts.min() <= streams, counts
    starts = {(int(episode), int(step)) for episode, step in seen[:, 0]}
    rows_per_episode = LENGTH + 1
    ahead = UPDATES + lag  # one actor may be ahead of the others by as much
    assert starts <= {divmod(item * (UNROLL + 1), rows_per_episode) for item in range(ahead)}


@pytest.mark.timeout(600)
def test_learner_finds_what_a_recurrent_actor_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding, over the ends of episodes, from the state that came with each item; not without it."""
    recorder = Recorder(monkeypatch)
    with learner_cluster(tmp_path) as cluster:
        assert run(cluster, 0, "truncated", lstm_size=8, learning_rate=0.05).learner.wait(200.0) is None
    assert len(recorder.divergences) == UPDATES
    assert max(recorder.divergences) < 1e-6
    assert max(recorder.forgetful_divergences) > 1e-4


@pytest.mark.timeout(600)
def test_learner_gets_again_what_a_replay_server_in_memory_lost(tmp_path: Path) -> None:
    """One actor's items are stored and wait for those of the other, which is late, when the server is killed."""
    with learner_cluster(tmp_path) as cluster:
        learner, replay, (_, late) = run(cluster, 0, "truncated", updates=_MANY)
        cluster.wait_for_status(lambda status: status.learner_steps >= 2, "the learner trains")
        late.signal(signal.SIGSTOP)
        with cluster.replay_client() as client:
            # The other may have been stopped between its two items.
            waits = range(ENVS, ENVS * ACTORS)
            wait_until(lambda: client.describe_table("replay").items in waits, "one actor waits for the other")
        assert cluster.learner_client().get_status().learner_steps < _MANY
        replay.signal(signal.SIGKILL)
        replay.wait()
        cluster.start_replay()
        late.signal(signal.SIGCONT)
        assert learner.wait(200.0) is None
