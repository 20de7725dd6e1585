"""The learner beside a parameter server whose tags say what was evaluated and what ended the run."""

from __future__ import annotations

import math
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.learner_cluster import LearnerCluster
from tests.support.params_service import local_server, publish
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import NotFound, Unavailable
from tidemill.params.client import ParamsClient
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.run_end import RunEnd, read_divergence
from tidemill.params.version import BEST, EVALUATED, LAST_TRAINED, VERDICT, Version
from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.rl.state_tree import flatten
from tidemill.services.learner.checkpoint.resume import LearnerSnapshot, ResumableState
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.rollback import VerdictWatcher
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.training.trainer import Trainer

_TARGET = ("--run.target-return", "1000")
"""Of a run that an evaluator ends; who sets the tags here is the test."""

_train = Trainer.run


def _diverging(trainer: Trainer) -> str:
    """Train to the end, publish, and diverge."""
    _train(trainer)
    assert trainer._publisher is not None
    trainer._publisher.publish()
    raise Diverged("loss nan")


def _tagged(params: ParamsClient, tag: str, fencing_token: int) -> Version:
    """Tag a learner's newest version, which is sent in the background; twenty newer ones may replace it meanwhile."""
    tagged: list[Version] = []

    def is_tagged() -> bool:
        newest = params.list_versions().versions[-1:]
        if newest and newest[0].fencing_token == fencing_token:
            with suppress(NotFound):
                params.set_tag(tag, newest[0].version)
                tagged.extend(newest)
        return bool(tagged)

    wait_until(is_tagged, f"a version that is {tag}")
    return tagged[0]


def _evaluated(cluster: LearnerCluster, params: ParamsClient, fencing_token: int = 1) -> Version:
    """Take a learner's newest version under evaluation, and let training continue for more than 64 versions."""
    cluster.wait_for_status(lambda status: status.learner_steps > 20, "training")
    version = _tagged(params, EVALUATED, fencing_token)
    steps = version.metadata.learner_steps
    cluster.wait_for_status(lambda status: status.learner_steps > steps + 700, "training continues")
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
    run, close, roll_back = Trainer.run, ReplayDataset.close, ResumableState.roll_back
    done: list[str] = []

    def closed(dataset: ReplayDataset) -> None:
        done.append("sampling ended")  # or steps that still come would count into what is restored
        close(dataset)

    def restored(state: ResumableState, snapshot: LearnerSnapshot) -> None:
        done.append("restored")
        roll_back(state, snapshot)

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
    monkeypatch.setattr(ReplayDataset, "close", closed)
    monkeypatch.setattr(ResumableState, "roll_back", restored)
    learner, params = cluster.start_learner(*_TARGET), cluster.params_client()
    cluster.feed()
    version = _evaluated(cluster, params)
    params.set_tag(VERDICT, version.version)
    assert learner.wait() is None
    assert done.index("sampling ended") < done.index("restored")
    listed = params.list_versions()
    assert listed.versions[-1].version > version.version
    assert listed.versions[-1].encodings == version.encodings
    assert LAST_TRAINED not in listed.tags
    found = CheckpointStore(cluster.checkpoints, keep=1).newest()
    assert found is not None
    assert found[1].counters["learner_steps"] == version.metadata.learner_steps
    assert not read_divergence(cluster.checkpoints.parent)


def test_divergence_is_marked_once_the_last_parameters_are_published(
    cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that came after the mark would look like training that got past it."""
    send = ParamsPublisher._send

    def slow(publisher: ParamsPublisher, publish: Any) -> int:  # noqa: ANN401
        if publish.metadata.learner_steps == 30:
            time.sleep(0.3)
        return send(publisher, publish)

    monkeypatch.setattr(Trainer, "run", _diverging)
    monkeypatch.setattr(ParamsPublisher, "_send", slow)
    learner = cluster.start_learner("--run.supervisor", "job", "--run.max-learner-steps", "30")
    cluster.feed()
    assert learner.wait() is None
    listed = cluster.params_client().list_versions()
    assert listed.versions[-1].metadata.learner_steps == 30
    assert [number for tag, number in listed.tags.items() if tag.startswith("diverged-")] == [listed.tags["latest"]]


def test_parameters_that_were_not_published_before_the_mark_of_a_divergence_are_dropped(
    cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameter server is away as training diverges, and first answers what marks the end."""
    send, mark, is_marked = ParamsPublisher._send, RunEnd.mark, threading.Event()
    is_tried = threading.Event()
    publishers: list[ParamsPublisher] = []

    def away(publisher: ParamsPublisher, publish: Any) -> int:  # noqa: ANN401
        publishers.append(publisher)
        if publish.metadata.learner_steps == 30 and not is_marked.is_set():
            is_tried.set()
            raise Unavailable("away")
        return send(publisher, publish)

    def diverging(trainer: Trainer) -> str:
        try:
            return _diverging(trainer)
        finally:
            is_tried.wait(WAIT_S)  # by then the server has stored all versions before

    def marked(end: RunEnd, timeout_s: float) -> None:
        mark(end, timeout_s)
        is_marked.set()
        publishers[0].flush(WAIT_S)

    monkeypatch.setattr(Trainer, "run", diverging)
    monkeypatch.setattr(ParamsPublisher, "_send", away)
    monkeypatch.setattr(RunEnd, "mark", marked)
    monkeypatch.setattr("tidemill.services.learner.learner.PUBLISH_S", 0.1)
    learner = cluster.start_learner("--run.supervisor", "job", "--run.max-learner-steps", "30")
    cluster.feed()
    assert learner.wait() is None
    tags = cluster.params_client().list_versions().tags
    assert [number for tag, number in tags.items() if tag.startswith("diverged-")] == [tags["latest"]]


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
    _tagged(client, VERDICT, 1)
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
