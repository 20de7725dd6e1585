"""When checkpoints are written, and what happens when they cannot be."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from prometheus_client import REGISTRY

from tests.support.clock import Clock
from tests.support.naming import naming
from tidemill.errors import ResourceExhausted
from tidemill.params.publisher import StalePublisher
from tidemill.services.learner.checkpoint.checkpointer import Checkpointer, longest_write_s
from tidemill.services.learner.checkpoint.format import Checkpoint
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.status.control import Control

_WAIT_S = 120.0


class _Store(CheckpointStore):
    """Fails when told to; can be held at its write."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        super().__init__(folder, keep=9, sync=sync)
        self.written: list[int] = []
        self.fault: Exception | None = None
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, checkpoint: Checkpoint, *, sync: bool = False) -> Path:
        assert self.may_write.wait(_WAIT_S)
        if self.fault is not None:
            raise self.fault
        self.written.append(checkpoint.counters["learner_steps"])
        return super().write(checkpoint, sync=sync)


class _Scene:
    """A checkpointer with everything around it under the test's control."""

    def __init__(
        self,
        folder: Path,
        *,
        every_s: float = 60.0,
        sync: bool = True,
        limit_s: Callable[[int], float] = longest_write_s,
        end_s: float = math.inf,
    ) -> None:
        self.clock, self.store, self.control = Clock(), _Store(folder, sync=sync), Control(threading.Event())
        self.steps = 0
        self.captures = 0
        self.checkpointer = Checkpointer(
            self.store,
            self._capture,
            every_s=every_s,
            steps=0,
            clock=self.clock,
            fence=self._check,
            limit_s=limit_s,
            end_s=end_s,
        )
        self.newer_learner: Exception | None = None

    def _check(self) -> None:
        if self.newer_learner is not None:
            raise self.newer_learner

    def _capture(self) -> Checkpoint:
        self.captures += 1
        state = {"weight": torch.zeros(1)}
        return Checkpoint("sac", {}, "", {"learner_steps": self.steps}, state, {})

    def poll(self) -> None:
        self.checkpointer.poll(self.control, self.steps)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[_Scene]:
    """A scene with a checkpoint due every 60 s."""
    scene = _Scene(tmp_path)
    yield scene
    scene.store.may_write.set()
    scene.checkpointer.close()


def test_checkpoint_is_written_when_due(scene: _Scene) -> None:
    """Not before `every_s`; then once, with the steps of that moment."""
    scene.steps = 3
    scene.poll()
    assert scene.captures == 0
    scene.clock.now_s += 60
    scene.poll()
    scene.poll()
    scene.checkpointer.close()
    assert scene.store.written == [3]
    assert scene.checkpointer.steps == 3


def test_checkpoint_without_a_new_step_is_not_due(scene: _Scene) -> None:
    """A learner that waits for data does not write the same state again and again."""
    scene.clock.now_s += 60
    scene.poll()
    assert scene.captures == 0


def test_restored_checkpoint_is_the_newest_one(tmp_path: Path) -> None:
    """A learner that has just started seemed to have none, until it wrote another."""
    store = _Store(tmp_path)
    Checkpointer(store, lambda: Checkpoint("", {}, "", {}, {}, {}), every_s=0.0, steps=50, clock=Clock()).close()
    assert REGISTRY.get_sample_value("tidemill_learner_checkpoint_steps") == 50


def test_request_is_answered_when_on_disk(scene: _Scene) -> None:
    """The caller learns path and steps."""
    scene.steps = 8
    request = scene.control.request_checkpoint()
    scene.poll()
    saved = request.result(_WAIT_S)
    assert saved.learner_steps == 8
    assert Path(saved.path).exists()


def test_request_waits_for_the_disk_where_other_checkpoints_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in lock-step, whose rounds each end with one: only what was asked for must outlive a loss of power."""
    scene, synced = _Scene(tmp_path, every_s=0.0, sync=False), list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    scene.checkpointer.write_now()
    of_round = len(synced)  # of the folder's name alone
    request = scene.control.request_checkpoint()
    scene.poll()
    request.result(_WAIT_S)
    scene.checkpointer.close()
    assert len(synced) > 2 * of_round


def test_one_is_written_at_a_time(scene: _Scene) -> None:
    """While the disk is busy further requests wait; no state is copied for them yet."""
    scene.store.may_write.clear()
    requests = [scene.control.request_checkpoint() for _ in range(2)]
    scene.poll()
    scene.poll()
    assert scene.captures == 1
    scene.store.may_write.set()
    requests[0].result(_WAIT_S)
    scene.poll()
    requests[1].result(_WAIT_S)


def test_abandoned_request_is_not_carried_out(scene: _Scene) -> None:
    """A caller that gave up costs nothing."""
    request: Future[object] = scene.control.request_checkpoint()  # type: ignore[assignment]
    request.cancel()
    scene.poll()
    assert scene.captures == 0


def test_full_disk_is_told_and_training_goes_on(scene: _Scene) -> None:
    """The request fails with the reason, and the next one succeeds when space returns."""
    scene.store.fault = ResourceExhausted("No space left on device")
    request = scene.control.request_checkpoint()
    scene.poll()
    with pytest.raises(ResourceExhausted, match="No space left"):
        request.result(_WAIT_S)
    assert (scene.checkpointer.steps, scene.checkpointer.error) == (0, "No space left on device")
    scene.store.fault = None
    request = scene.control.request_checkpoint()
    scene.poll()
    assert request.result(_WAIT_S).learner_steps == 0
    assert scene.checkpointer.error == ""


def test_fault_of_a_periodic_checkpoint_stays_in_the_log(scene: _Scene) -> None:
    """Nobody asked for it, so nothing is raised; the next one is due later."""
    scene.store.fault = ResourceExhausted("No space left on device")
    scene.steps = 1
    scene.clock.now_s += 60
    scene.poll()
    scene.checkpointer.close()
    assert scene.captures == 1


def test_finish_writes_a_last_one(scene: _Scene) -> None:
    """The last state is on disk before the process ends, even behind one in progress."""
    scene.store.may_write.clear()
    scene.steps = 1
    scene.control.request_checkpoint()
    scene.poll()
    scene.steps = 2
    threading.Timer(0.05, scene.store.may_write.set).start()
    assert scene.checkpointer.finish() == ""
    assert scene.store.written == [1, 2]


@pytest.mark.parametrize("is_behind", [False, True])
def test_finish_says_that_a_hanging_disk_did_not_take_the_last_one(tmp_path: Path, is_behind: bool) -> None:
    """It ends in its time, also behind a checkpoint that hangs; the learner learns why its last state is not saved."""
    scene = _Scene(tmp_path, limit_s=lambda _: 0.05)
    scene.store.may_write.clear()
    if is_behind:
        scene.control.request_checkpoint()
        scene.poll()
    assert scene.checkpointer.finish() == "the disk took longer than 0.05 s"
    assert scene.checkpointer.error == "the disk took longer than 0.05 s"
    scene.store.may_write.set()


def test_finish_gives_a_large_checkpoint_more_time(tmp_path: Path) -> None:
    """Ten seconds, and what its tensors take on a disk that writes 10 MB a second."""
    assert (longest_write_s(0), longest_write_s(4_000_000_000)) == (10.0, 410.0)
    sizes: list[int] = []

    def limit_s(size_bytes: int) -> float:
        sizes.append(size_bytes)
        return _WAIT_S

    assert _Scene(tmp_path, limit_s=limit_s).checkpointer.finish() == ""
    assert sizes == [0, 4]


def test_finish_has_one_deadline_for_the_checkpoint_in_flight_and_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first leaves of it is the second's: other machines wait for both."""
    scene = _Scene(tmp_path, limit_s=lambda _: 410.0, end_s=80.0)
    scene.store.may_write.clear()
    scene.control.request_checkpoint()
    scene.poll()
    waits, wait = list[float | None](), Future.exception

    def take_50_s(future: Future[object], timeout: float | None = None) -> BaseException | None:
        waits.append(timeout)
        scene.clock.now_s += 50.0
        scene.store.may_write.set()
        return wait(future, _WAIT_S)

    monkeypatch.setattr(Future, "exception", take_50_s)
    assert scene.checkpointer.finish() == ""
    assert waits == [80.0, 30.0]


def test_finish_of_a_superseded_learner_says_so(scene: _Scene) -> None:
    """The last checkpoint is refused by the fence: `finish` raises, so that the process fails."""
    scene.newer_learner = StalePublisher("fencing token 1 was superseded by 2")
    with pytest.raises(StalePublisher, match=naming("superseded 2")):
        scene.checkpointer.finish()
    assert scene.store.written == []


def test_finish_with_a_full_disk_does_not_fail(scene: _Scene) -> None:
    """The run has ended well; that its last checkpoint is missing is logged, returned and kept as `error`."""
    scene.store.fault = ResourceExhausted("the disk is full")
    assert scene.checkpointer.finish() == "the disk is full"
    assert scene.checkpointer.error == "the disk is full"


def test_zero_interval_means_on_request_only(tmp_path: Path) -> None:
    """`every_s` 0 turns periodic checkpoints off."""
    scene = _Scene(tmp_path, every_s=0.0)
    scene.steps = 1
    scene.clock.now_s += 10_000
    scene.poll()
    scene.checkpointer.close()
    assert scene.captures == 0


def test_superseded_learner_writes_no_checkpoint_and_ends(scene: _Scene) -> None:
    """The fence is asked before the write; the request fails, and the training thread learns of it at its next look."""
    scene.newer_learner = StalePublisher("fencing token 1 was superseded by 2")
    request = scene.control.request_checkpoint()
    scene.poll()
    with pytest.raises(StalePublisher):
        request.result(_WAIT_S)
    assert scene.store.written == []
    with pytest.raises(StalePublisher, match=naming("superseded 2")):
        scene.poll()
