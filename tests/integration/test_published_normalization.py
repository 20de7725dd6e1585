"""The policy acted with is the version published, to the bit, its normalizer included: over restarts and a rollback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from tests.support.feeder import SPEC
from tests.support.learner_cluster import LearnerCluster, learner_cluster
from tests.support.waiting import WAIT_S, wait_until
from tidemill.params.blob import unpack
from tidemill.params.client import ParamsClient
from tidemill.params.digest import params_digest
from tidemill.params.version import EVALUATED, VERDICT, Precision
from tidemill.params.watcher import ParamsWatcher
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.actor.acting.loop import PolicyParams
from tidemill.services.learner.checkpoint.store import CheckpointStore

_NORMALIZED = ("--agent.normalize-observations", "true", "--run.target-return", "1000")
_CONFIG = DQNConfig(network="mlp", hidden_sizes=(16,), n_step=1, normalize_observations=True)
_MEAN = "torso.standardization.mean"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LearnerCluster]:
    """A cluster whose parameter server keeps all that an actor may have acted with."""
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params("--paramserver.keep-versions", "10000")
        yield cluster


class _Actor:
    """What an actor acts by, and the digest of it at each version that it acted with."""

    def __init__(self, watcher: ParamsWatcher, policy: Policy) -> None:
        """Wait for the first version."""
        self._policy, self._params = policy, PolicyParams(watcher, policy)
        assert self._params.wait(threading.Event())
        self.acted: dict[int, str] = {}
        self.note()

    def note(self) -> int:
        """Load the newest version; return its number and keep the digest of what the network holds."""
        self._params.refresh()
        (network,) = (part for part in vars(self._policy).values() if isinstance(part, nn.Module))
        self.acted[self._params.version] = params_digest(
            {name: value.numpy() for name, value in network.state_dict().items()}
        )
        return self._params.version

    def reach(self, version: int) -> None:
        """Act until a version is there."""
        wait_until(lambda: self.note() >= version, f"version {version}", WAIT_S)


def test_policy_acted_with_is_the_published_version_over_a_restart_and_a_rollback(cluster: LearnerCluster) -> None:
    """In full precision every version that was acted with has the digest of its bytes; the statistics move with them.

    A learner that resumes continues the counts; a rollback brings back those of the version that ended the run.
    """
    first, client = cluster.start_learner(*_NORMALIZED), cluster.params_client()
    cluster.feed()
    policy = build_policy(_CONFIG, SPEC)
    with ParamsWatcher(cluster.params, precision=Precision.FULL) as watcher:
        actor = _Actor(watcher, policy)
        actor.reach(3)
        first.close()
        stopped = client.list_versions().versions[-1].version
        before = _count(cluster)
        second = cluster.start_learner(*_NORMALIZED)
        actor.reach(stopped + 3)
        chosen = next(v for v in reversed(client.list_versions().versions) if v.fencing_token == 2)
        client.set_tag(EVALUATED, chosen.version)
        published = _digest(client, chosen.version)
        actor.reach(chosen.version + 5)
        client.set_tag(VERDICT, chosen.version)
        assert second.wait() is None
        newest = client.list_versions().versions[-1]
        actor.reach(newest.version)
        assert newest.encodings == chosen.encodings
        assert actor.acted[newest.version] == published
        kept = {version.version for version in client.list_versions().versions}
        checked = [version for version in actor.acted if version in kept]
        assert len(checked) >= 3
        for version in checked:
            assert actor.acted[version] == _digest(client, version)
    counts = _count(cluster)
    assert counts > before > 0
    half = client.fetch(newest.version, precision=Precision.HALF)
    assert half is not None
    mean = unpack(half.blob)[_MEAN]
    assert mean.dtype == np.float64
    assert np.abs(mean).max() > 0


def _digest(client: ParamsClient, version: int) -> str:
    """Return the digest of a published version, in full precision."""
    found = client.fetch(version)
    assert found is not None
    return params_digest(unpack(found.blob))


def _count(cluster: LearnerCluster) -> float:
    """Return how many observations the newest checkpoint's learner has counted."""
    found = CheckpointStore(cluster.checkpoints, keep=1).newest()
    assert found is not None
    return float(found[1].agent["normalizer"]["observations.count"])
