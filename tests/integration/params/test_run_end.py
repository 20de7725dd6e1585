"""The mark that a run is over, kept by a real parameter server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.naming import naming
from tests.support.params_service import LocalServer, local_server, publish
from tests.support.waiting import WAIT_S
from tidemill.config.digest import diverged_tag
from tidemill.config.run import RunSettings
from tidemill.config.sections import LearnerConfig
from tidemill.errors import NotFound, Unavailable
from tidemill.params.client import ParamsClient
from tidemill.params.run_end import RunEnd
from tidemill.params.version import ParamsMetadata, Precision

TAG = RunSettings(target_return=200.0).end_tag


def test_mark_is_heard_by_who_watched_before_and_who_comes_later(client: ParamsClient, server: LocalServer) -> None:
    """The learner that trains hears of the end, and one that is started after it, too."""
    publish(client, b"first")
    publish(client, b"second")
    before, after = threading.Event(), threading.Event()
    with RunEnd(server.address, TAG) as evaluator, RunEnd(server.address, TAG) as learner:
        learner.watch(before.set)
        assert not learner.is_marked()
        evaluator.mark(WAIT_S, 1)
        assert before.wait(WAIT_S)
        assert learner.is_marked()
        learner.mark(WAIT_S)  # as one that reaches a limit just then: the verdict stays what it was
    with RunEnd(server.address, TAG) as restarted:
        restarted.watch(after.set)
        assert after.wait(WAIT_S)
    assert client.list_versions().tags[TAG] == 1


def test_mark_without_a_version_takes_the_newest(client: ParamsClient, server: LocalServer) -> None:
    """A learner at its limit ends with what it has published last; without anything published there is no end."""
    with RunEnd(server.address, TAG) as learner:
        with pytest.raises(NotFound, match=naming("version")):
            learner.mark(0.0)
        publish(client, b"first")
        publish(client, b"second")
        learner.mark(0.0)
    assert client.list_versions().tags[TAG] == 2


def test_mark_is_heard_after_a_restart_of_the_server(tmp_path: Path) -> None:
    """A watch that the server's end broke off is taken up again after its restart, and the server knows the mark."""
    heard = threading.Event()
    with local_server(tmp_path) as server:
        address = server.address
        with ParamsClient(address) as client, RunEnd(address, TAG) as evaluator:
            publish(client, b"first")
            evaluator.mark(WAIT_S)
    with RunEnd(address, TAG) as learner:  # nobody listens there now
        learner.watch(heard.set)
        with local_server(tmp_path, address=address):
            assert heard.wait(WAIT_S)


def test_end_holds_for_one_target_and_one_set_of_limits() -> None:
    """Whoever raises target or limit continues with the run; name, seed and folder have nothing to do with its end."""
    ended = RunSettings(target_return=200.0, max_env_steps=1000)
    assert ended.end_tag == RunSettings(name="other", seed=7, target_return=200.0, max_env_steps=1000).end_tag
    others = [
        RunSettings(target_return=250.0, max_env_steps=1000),
        RunSettings(target_return=None, max_env_steps=1000),
        RunSettings(target_return=200.0, max_env_steps=2000),
        RunSettings(target_return=200.0, max_env_steps=1000, max_wall_s=60),
        RunSettings(target_return=200.0, max_env_steps=1000, max_learner_steps=10),
    ]
    assert len({run.end_tag for run in (ended, *others)}) == 6


def test_mark_of_a_divergence_holds_until_training_gets_past_it(client: ParamsClient, server: LocalServer) -> None:
    """Other settings trained on, and those that diverged are set again: they may train, and diverge again."""
    tag, heard = diverged_tag(LearnerConfig()), SimpleQueue[int]()

    def train(*steps: int) -> None:
        opened = client.acquire_fencing_token("learner")
        for number, each in enumerate(steps, opened.latest_version):
            blobs, metadata = {Precision.FULL: b"%d" % each}, ParamsMetadata(learner_steps=each)
            client.publish(blobs, metadata, fencing_token=opened.fencing_token, base_version=number)

    with RunEnd(server.address, tag) as learner, RunEnd(server.address, tag) as evaluator:
        train(50, 100)
        learner.mark(0.0)
        train(70)  # from the checkpoint, before it hears of the end
        assert learner.is_marked()
        train(150, 300)
        assert not learner.is_marked()
        evaluator.watch(lambda: heard.put(client.list_versions().tags[tag]))
        learner.mark(0.0)
        assert learner.is_marked()
        assert heard.get(timeout=WAIT_S) == 5
        train(350, 70)  # killed past the mark, and resumed below it
        assert not learner.is_marked()


def test_marking_takes_no_longer_than_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a server that does not answer count, not only the pauses between them."""
    calls = 0

    def slow(*_: object) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.25)
        raise Unavailable("no answer")

    monkeypatch.setattr(RunEnd, "_set", slow)
    with RunEnd("127.0.0.1:1", TAG) as learner, pytest.raises(Unavailable):
        learner.mark(1.0)
    assert calls <= 4  # of which four take a second
