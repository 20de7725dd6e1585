"""The learner beside a parameter server whose tags say what was evaluated and what ended the run."""

from __future__ import annotations

import math
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.learner_cluster import LearnerCluster
from tests.support.params_service import local_server, publish
from tests.support.waiting import WAIT_S, wait_until
from tidemill.params.client import ParamsClient
from tidemill.params.run_end import read_divergence
from tidemill.params.version import BEST, EVALUATED, LAST_TRAINED, VERDICT, Version
from tidemill.rl.state_tree import flatten
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.rollback import VerdictWatcher
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.training.trainer import Trainer

_TARGET = ("--run.target-return", "1000")
"""Of a run that an evaluator ends; who sets the tags here is the test."""


def _evaluated(cluster: LearnerCluster, params: ParamsClient, fencing_token: int = 1) -> Version:
    """Take a learner's newest version under evaluation, and let training continue for more than 64 versions."""
    cluster.wait_for_status(lambda status: status.learner_steps > 20, "training")

    def newest() -> Version | None:  # they are sent in the background
        return next(reversed(params.list_versions().versions), None)

    wait_until(lambda: (v := newest()) is not None and v.fencing_token == fencing_token, "a version")
    version = newest()
    assert version is not None
    params.set_tag(EVALUATED, version.version)
    cluster.wait_for_status(
        lambda status: status.learner_steps > version.metadata.learner_steps + 700, "training continues"
    )
    return version


def test_learner_goes_back_to_the_version_that_ended_the_run(cluster: LearnerCluster) -> None:
    """It ends by itself; its newest parameters and its checkpoint are those of the verdict, to the byte."""
    learner, params = cluster.start_learner(*_TARGET), cluster.params_client()
    cluster.feed()
    version = _evaluated(cluster, params)
    steps = version.metadata.learner_steps
    params.set_tag(BEST, version.version)
    params.set_tag(VERDICT, version.version)
    assert learner.wait() is None
    listed = params.list_versions()
    newest = listed.versions[-1]
    assert newest.version > version.version
    assert newest.encodings == version.encodings  # sizes and SHA-256 of the bytes, which hold the metadata too
    found = CheckpointStore(cluster.checkpoints, keep=1).newest()
    assert found is not None
    assert found[1].counters["learner_steps"] == steps
    left = next(each for each in listed.versions if each.version == listed.tags[LAST_TRAINED])
    assert left.metadata.learner_steps > steps + 700


@pytest.mark.parametrize("where", ["loss", "parameters"])
def test_learner_that_has_diverged_since_goes_back_all_the_same(
    cluster: LearnerCluster, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that ended the run is published and saved; what is not finite is neither, and no divergence noted."""
    run = Trainer.run

    def diverging(trainer: Trainer) -> str:
        reason = run(trainer)
        if where == "loss":
            raise Diverged("loss nan")
        state = trainer._agent.state_dict()
        for tensor in flatten(state)[1].values():
            if tensor.is_floating_point():
                tensor.fill_(math.nan)
        trainer._agent.load_state_dict(state)
        return reason

    monkeypatch.setattr(Trainer, "run", diverging)
    learner, params = cluster.start_learner(*_TARGET), cluster.params_client()
    cluster.feed()
    version = _evaluated(cluster, params)
    params.set_tag(VERDICT, version.version)
    assert learner.wait() is None
    listed = params.list_versions()
    assert listed.versions[-1].version > version.version
    assert listed.versions[-1].encodings == version.encodings
    assert LAST_TRAINED not in listed.tags
    found = CheckpointStore(cluster.checkpoints, keep=1).newest()
    assert found is not None
    assert found[1].counters["learner_steps"] == version.metadata.learner_steps
    assert not read_divergence(cluster.checkpoints.parent)


def test_resumed_learner_trains_on_in_spite_of_an_old_verdict(cluster: LearnerCluster) -> None:
    """The verdict of the session before is where it starts; the next one ends it."""
    first, params = cluster.start_learner(*_TARGET), cluster.params_client()
    cluster.feed()
    version = _evaluated(cluster, params)
    params.set_tag(VERDICT, version.version)
    assert first.wait() is None
    second = cluster.start_learner(*_TARGET)
    status = cluster.wait_for_status(lambda status: bool(status.restored), "the learner is back")
    assert f": {version.metadata.learner_steps:,} updates" in status.restored
    again = _evaluated(cluster, params, fencing_token=2)
    params.set_tag(VERDICT, again.version)
    assert second.wait() is None
    assert params.list_versions().versions[-1].encodings == again.encodings


def test_verdict_on_a_version_of_an_earlier_life_ends_the_learner_where_it_stands(cluster: LearnerCluster) -> None:
    """A version that was not kept cannot come back: the run ends all the same, and says so."""
    first, params = cluster.start_learner(*_TARGET), cluster.params_client()
    cluster.feed()
    version = _evaluated(cluster, params)
    first.close()
    second = cluster.start_learner(*_TARGET)
    cluster.wait_for_status(lambda status: status.learner_steps > version.metadata.learner_steps + 700, "training")
    before = params.list_versions().versions[-1].metadata.learner_steps
    params.set_tag(VERDICT, version.version)
    assert second.wait() is None
    assert params.list_versions().versions[-1].metadata.learner_steps >= before


def test_tags_that_cannot_be_read_hold_up_nothing(cluster: LearnerCluster) -> None:
    """Without the parameter server training continues; when it is back, a verdict ends it as usual."""
    cluster.close()
    cluster.start_replay()
    params = cluster.start_params()
    learner = cluster.start_learner(*_TARGET)
    cluster.feed()
    before = cluster.wait_for_status(lambda status: status.params_version > 2, "versions")
    params.close()
    cluster.wait_for_status(lambda status: status.learner_steps > before.learner_steps + 100, "steps meanwhile")
    cluster.start_params()
    client = cluster.params_client()
    cluster.wait_for_status(lambda status: status.params_version > before.params_version + 1, "versions again")
    client.set_tag(VERDICT, client.list_versions().versions[-1].version)
    assert learner.wait() is None


def test_verdict_that_was_heard_outlives_the_parameter_server(tmp_path: Path) -> None:
    """The learner was told to end; by the time that it asks for which version, the server is away."""
    heard = threading.Event()
    with local_server(tmp_path) as server, ParamsClient(server.address) as params:
        number = publish(params, b"one")
        verdicts = VerdictWatcher(server.address, 1, heard.set)
        params.set_tag(VERDICT, number)
        assert heard.wait(WAIT_S)
    with closing(verdicts):
        verdict = verdicts.decided()
    assert verdict is not None
    assert verdict.version == number
