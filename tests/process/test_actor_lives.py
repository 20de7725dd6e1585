"""An actor process that is killed and started again, beside a real learner."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.support.learner_cluster import LearnerCluster, learner_cluster
from tests.support.waiting import wait_until
from tidemill.services.actor.__main__ import training_seed
from tidemill.services.actor.actor_index import actor_index

_WAIT_S = 240.0  # torch is imported, on a machine that may be busy
_SEED = re.compile(r"acting starts.* seed=(\d+)")


def _seed_of_a_life(cluster: LearnerCluster, *options: str) -> int:
    """Start the actor until it acts, kill it, and return the seed it played from."""
    actor = cluster.start_actor(*options)
    wait_until(lambda: _SEED.search(actor.text()) is not None, "the actor acts", _WAIT_S)
    actor.signal(signal.SIGKILL)
    actor.wait()
    found = _SEED.search(actor.text())
    assert found is not None
    return int(found.group(1))


def test_restarted_actor_does_not_replay_its_first_life(tmp_path: Path) -> None:
    """An actor starts with the seed of run and actor; after each restart, however soon, it has another.

    So has one with an index but no name, such as a container that Compose makes again.
    """
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params()
        cluster.start_learner()
        first, *later = [_seed_of_a_life(cluster, "--actor.id", "a") for _ in range(3)]
        unnamed = [_seed_of_a_life(cluster, "--actor.index", "0") for _ in range(2)]
    assert first == training_seed(1, actor_index(None, "a"))
    assert len({first, *later, *unnamed}) == 5
