"""Two learners of one run by mistake: the older one, frozen while the newer one took over, writes nothing any more."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.support.feeder import TABLE
from tests.support.learner_cluster import LearnerCluster, learner_cluster
from tests.support.waiting import WAIT_S, wait_until
from tidemill.services.learner import learner
from tidemill.services.learner.checkpoint.store import CheckpointStore


def _newest(cluster: LearnerCluster) -> tuple[str, int]:
    found = CheckpointStore(cluster.checkpoints, keep=3).newest()
    assert found is not None
    return found[0].name, found[1].counters["learner_steps"]


@pytest.mark.parametrize("is_asked_to_stop", [False, True])
def test_frozen_learner_that_was_superseded_writes_nothing(
    cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch, is_asked_to_stop: bool
) -> None:
    """Awake again, it ends: no checkpoint, no priorities, no version; a restart restores the newer one's steps."""
    monkeypatch.setattr(learner, "_LAST_PUBLISH_S", WAIT_S)  # of the learners in threads
    lazy = ["--learner.checkpoint-every-s", "0", "--learner.publish-every", "100000"]
    old = cluster.start_learner_process(*lazy, module="tests.support.patient_learner")
    feeder = cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 100, "the old learner trains")
    limit = cluster.learner_client().save_checkpoint().learner_steps + 300
    old.signal(signal.SIGSTOP)
    new = cluster.start_learner(*lazy, "--learner.server.address", "127.0.0.1:0", "--run.max-learner-steps", f"{limit}")
    assert new.wait() is None
    feeder.close()
    before, files = _newest(cluster), sorted(path.name for path in cluster.checkpoints.iterdir())
    updates = cluster.replay_client().describe_table(TABLE).priority_updates
    if is_asked_to_stop:
        old.signal(signal.SIGTERM)  # after which it would write a last checkpoint
    else:
        cluster.feed()  # for it to train on
    old.signal(signal.SIGCONT)
    assert old.wait() == 1
    assert "learner: fencing token 1 was superseded by 2" in old.text().splitlines()[-1]
    assert sorted(path.name for path in cluster.checkpoints.iterdir()) == files
    assert (_newest(cluster), before[1]) == (before, limit)
    assert cluster.replay_client().describe_table(TABLE).priority_updates == updates
    assert {version.fencing_token for version in cluster.params_client().list_versions().versions[-2:]} == {2}
    resumed = cluster.start_learner("--run.max-learner-steps", f"{limit}")
    assert resumed.wait() is None
    wait_until(lambda: _newest(cluster)[1] == limit, "the newer learner's steps")


def test_checkpoints_outlive_a_parameter_server_that_lost_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new server's fencing token and versions are above those of the checkpoints, so the newest stay newest."""
    monkeypatch.setattr(learner, "_LAST_PUBLISH_S", WAIT_S)
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        params = cluster.start_params()
        first = cluster.start_learner("--run.max-learner-steps", "50")
        cluster.feed()
        assert first.wait() is None
        second = cluster.start_learner("--run.max-learner-steps", "60")
        assert second.wait() is None
        restored = CheckpointStore(cluster.checkpoints, keep=3).newest()
        assert restored is not None
        known = restored[1].counters["version"]
        params.signal(signal.SIGTERM)
        assert params.wait() == 0
        shutil.rmtree(tmp_path / "test" / "params")
        cluster.start_params()
        third = cluster.start_learner("--run.max-learner-steps", "70")
        assert third.wait() is None
        assert _newest(cluster)[1] == 70
        assert cluster.params_client().list_versions().versions[0].version == known + 1 > 1
        assert cluster.params_client().acquire_fencing_token("test").fencing_token == 4


def test_learner_trains_on_when_its_parameter_server_loses_its_folder(tmp_path: Path) -> None:
    """Versions continue above those that actors have, and its checkpoints and priorities are taken."""
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        params = cluster.start_params()
        running = cluster.start_learner("--learner.publish-every", "1")
        cluster.feed()
        cluster.wait_for_status(lambda s: s.params_version >= 20, "versions are published")
        params.signal(signal.SIGTERM)
        assert params.wait() == 0
        known = cluster.learner_client().get_status().params_version
        shutil.rmtree(tmp_path / "test" / "params")
        cluster.start_params()
        updates = cluster.replay_client().describe_table(TABLE).priority_updates
        listed = cluster.params_client().list_versions
        wait_until(lambda: listed().versions, "a version after the loss")
        assert listed().versions[0].version > known
        assert cluster.learner_client().save_checkpoint().learner_steps > 0
        wait_until(lambda: cluster.replay_client().describe_table(TABLE).priority_updates > updates, "priorities")
        cluster.learner_client().stop("seen enough")
        assert running.wait() is None


def test_replay_server_that_outlived_all_else_is_written_to(tmp_path: Path) -> None:
    """Parameter server and checkpoints were removed: the new learner's token is still above that of its table."""
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        params = cluster.start_params()
        cluster.feed()
        for limit in ("50", "60"):
            assert cluster.start_learner("--run.max-learner-steps", limit).wait() is None
        before = cluster.replay_client().describe_table(TABLE)
        assert before.fencing_token == 2
        params.signal(signal.SIGTERM)
        assert params.wait() == 0
        shutil.rmtree(tmp_path / "test" / "params")
        shutil.rmtree(cluster.checkpoints)
        cluster.start_params()
        assert cluster.start_learner("--run.max-learner-steps", "50").wait() is None
        after = cluster.replay_client().describe_table(TABLE)
        assert after.fencing_token == 3
        assert after.priority_updates > before.priority_updates
