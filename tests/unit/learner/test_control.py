"""Requests to the training thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import FailedPrecondition
from tidemill.services.learner.status.control import Control


def test_pause_and_resume_are_seen() -> None:
    """The training thread reads what was asked last."""
    control = Control(threading.Event())
    states = [control.paused]
    for request in (control.pause, control.pause, control.resume):
        request()
        states.append(control.paused)
    assert states == [False, True, True, False]


def test_first_reason_to_stop_is_kept() -> None:
    """What ended the run is what is reported, not what came after."""
    control = Control(threading.Event())
    assert control.stop_reason is None
    control.stop("target reached")
    control.stop("too late")
    assert control.stop_reason == "target reached"


def test_signal_stops_as_a_call_does() -> None:
    """SIGTERM only sets an event; the training thread finds it."""
    signalled = threading.Event()
    control = Control(signalled)
    signalled.set()
    assert control.stop_reason == "a signal asked"
    with pytest.raises(FailedPrecondition, match=naming("stopping signal")):
        control.pause()


def test_requests_while_stopping_are_refused() -> None:
    """Nothing is accepted that could no longer be carried out."""
    control = Control(threading.Event())
    control.stop("over")
    for request in (control.pause, control.resume, control.request_checkpoint):
        with pytest.raises(FailedPrecondition, match=naming("learner")):
            request()


def test_checkpoint_requests_are_handed_over_in_order() -> None:
    """Each request is answered once, by whoever took it."""
    control = Control(threading.Event())
    first, second = control.request_checkpoint(), control.request_checkpoint()
    assert control.take_checkpoint_request() is first
    assert control.take_checkpoint_request() is second
    assert control.take_checkpoint_request() is None


def test_close_answers_waiting_requests() -> None:
    """A caller that waits for a checkpoint is not left waiting when the learner ends."""
    control = Control(threading.Event())
    request = control.request_checkpoint()
    control.close()
    with pytest.raises(FailedPrecondition):
        request.result(timeout=0)


@pytest.mark.parametrize("method", ["resume", "stop", "request_checkpoint"])
def test_wait_ends_with_a_request(method: str) -> None:
    """A paused training thread reacts at once, not after its timeout."""
    control = Control(threading.Event())
    control.pause()
    training = threading.Thread(target=control.wait, args=(10 * WAIT_S,), daemon=True)
    training.start()
    training.join(0.2)
    assert training.is_alive()
    getattr(control, method)(*(["x"] if method == "stop" else []))
    training.join(WAIT_S)
    assert not training.is_alive()


def test_wait_is_not_ended_by_a_request_that_came_before() -> None:
    """It lasts while a checkpoint is being written: a paused training thread would poll at full speed."""
    control = Control(threading.Event())
    control.pause()
    control.request_checkpoint()
    started = time.monotonic()
    control.wait(0.05)
    assert time.monotonic() - started >= 0.05


def test_end_survives_a_request_whose_caller_has_given_up() -> None:
    """The others are still refused."""
    control = Control(threading.Event())
    given_up, waiting = control.request_checkpoint(), control.request_checkpoint()
    assert given_up.cancel()
    control.close()
    assert isinstance(waiting.exception(0), FailedPrecondition)


@pytest.mark.parametrize("ends", ["killed", "signalled"])
def test_pause_outlives_the_process(ends: str, tmp_path: Path) -> None:
    """A restarted learner is paused until somebody resumes or stops it."""
    file, signalled = tmp_path / "paused", threading.Event()
    first = Control(signalled, file)
    assert not first.paused
    first.pause()
    if ends == "signalled":
        signalled.set()
        first.stop("a signal asked")
        first.close()
    second = Control(threading.Event(), file)
    assert second.paused
    second.resume()
    assert not Control(threading.Event(), file).paused
    second.pause()
    second.stop("asked by a caller")
    assert not Control(threading.Event(), file).paused


def test_pause_without_a_folder_lasts_as_long_as_the_process(tmp_path: Path) -> None:
    """A disk that refuses the note does not refuse the pause."""
    control = Control(threading.Event(), tmp_path / "nowhere" / "paused")
    control.pause()
    assert control.paused
    control.resume()
    assert not control.paused
