"""The training loop with every part around it under control."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from tests.support.clock import Clock
from tests.support.learner_fakes import FakeAgent, FakePriorities, FakePublisher, FakeSource, batch
from tests.support.naming import naming
from tests.support.waiting import wait_until
from tidemill.errors import ConfigError, FailedPrecondition, FatalError
from tidemill.learner.status import LearnerState
from tidemill.params.publisher import StalePublisher
from tidemill.replay.batch import StoredSteps
from tidemill.rl.agents.interface import Update
from tidemill.services.learner.checkpoint.checkpointer import Checkpointer
from tidemill.services.learner.checkpoint.resume import ResumableState
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.data.device import DeviceBatch
from tidemill.services.learner.status import metrics
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.progress import Progress
from tidemill.services.learner.training.threads import Threads
from tidemill.services.learner.training.trainer import Limits, Trainer, TrainerOutputs

_WAIT_S = 120.0


class _Scene:
    """A trainer and its surroundings; its thread is the test's unless `start` is called."""

    def __init__(self, folder: Path, limits: Limits, batches: int = 0) -> None:
        self.agent, self.source = FakeAgent(), FakeSource(*(batch(key) for key in range(1, batches + 1)))
        self.priorities, self.publisher = FakePriorities(), FakePublisher(self.agent)
        self.control, self.counters, self.clock = Control(threading.Event()), Counters(), Clock()
        self.progress = Progress(self.counters, log_every_s=10.0, clock=self.clock)
        resumable = ResumableState(self.agent, self.counters, algorithm="fake", config_digest="")
        self.checkpointer = Checkpointer(
            CheckpointStore(folder, keep=2), resumable.capture, every_s=0.0, steps=0, clock=self.clock
        )
        self.acknowledged_versions: list[int] = []
        self.trainer = Trainer(
            self.agent,
            self.source,
            TrainerOutputs(
                self.priorities, self.publisher, self.checkpointer, on_publish=self.acknowledged_versions.append
            ),
            self.control,
            self.counters,
            self.progress,
            limits,
            self.clock,
        )
        self.reason: str | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.reason = self.trainer.run()

    def await_state(self, state: LearnerState) -> None:
        """Wait until the trainer reports a state."""
        wait_until(lambda: self.progress.state is state, f"the trainer is {state}")

    def end(self) -> None:
        """Stop and wait for the thread."""
        self.control.stop("test over")
        if self.thread.ident is not None:
            self.thread.join(_WAIT_S)
            assert not self.thread.is_alive()
        self.checkpointer.close()


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[list[_Scene]]:
    """Scenes to end with the test."""
    made: list[_Scene] = []
    yield made
    for scene in made:
        scene.end()


def _scene(scenes: list[_Scene], folder: Path, limits: Limits, batches: int = 0) -> _Scene:
    scenes.append(_Scene(folder, limits, batches))
    return scenes[-1]


def test_training_ends_at_the_step_limit(tmp_path: Path, scenes: list[_Scene]) -> None:
    """Exactly `max_learner_steps` updates are made, though more batches wait."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=5), batches=9)
    assert scene.trainer.run() == "run.max_learner_steps (5) reached"
    assert scene.counters.learner_steps == 5
    assert len(scene.agent.batches) == 5
    assert scene.priorities.keys == [1, 2, 3, 4, 5]


def test_operation_without_a_deterministic_kernel_ends_a_deterministic_run(
    tmp_path: Path, scenes: list[_Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that names it and what to set; torch's own message is for other programs. Other errors stay."""
    scene = _scene(scenes, tmp_path, Limits(), batches=2)

    def update(batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # one that torch refuses on a CPU, too
        raise RuntimeError("out of memory")

    monkeypatch.setattr(scene.agent, "update", update)
    named = naming("run.deterministic true put_ learner.device cpu agent.network")
    torch.set_deterministic_debug_mode("error")
    try:
        with pytest.raises(ConfigError, match=named) as raised:
            scene.trainer.run()
        assert "\n" not in str(raised.value)
    finally:
        torch.set_deterministic_debug_mode("default")
    with pytest.raises(RuntimeError, match="out of memory"):
        scene.trainer.run()


def test_host_is_at_most_four_updates_ahead_of_a_gpu(
    tmp_path: Path, scenes: list[_Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once five updates were launched the first must have ended, and so on; no stream is synchronised."""
    seen: list[str] = []

    class Event:
        """Notes after how many updates it was recorded, and when the host waits for it."""

        def __init__(self, *, blocking: bool) -> None:
            assert blocking

        def record(self) -> None:
            self.update = len(scene.agent.batches)

        def synchronize(self) -> None:
            seen.append(f"{self.update} after {len(scene.agent.batches)}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(DeviceBatch, "wait", lambda batch: None)
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=8))
    on_gpu = DeviceBatch({}, Event(blocking=True))  # type: ignore[arg-type]
    scene.source.batches += [batch(key, on_device=on_gpu) for key in range(1, 9)]
    scene.trainer.run()
    assert seen == ["1 after 5", "2 after 6", "3 after 7", "4 after 8"]


def test_training_ends_at_the_env_step_limit(tmp_path: Path, scenes: list[_Scene]) -> None:
    """Agent decisions are those the replay service reported, earlier lives included."""
    scene = _scene(scenes, tmp_path, Limits(max_env_steps=30), batches=1)
    scene.counters.observe(StoredSteps(1, 20))
    scene.counters.observe(StoredSteps(2, 10))
    assert scene.trainer.run() == "run.max_env_steps (30) reached"
    assert scene.counters.learner_steps == 0


def test_limit_reached_before_a_resume_ends_at_once(tmp_path: Path, scenes: list[_Scene]) -> None:
    """A finished run that is resumed makes no further update."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=5), batches=1)
    scene.counters.learner_steps = 5
    scene.trainer.run()
    assert scene.agent.batches == []


def test_parameters_are_published_every_k_steps(tmp_path: Path, scenes: list[_Scene]) -> None:
    """At steps 3, 6 and 9 of 10, with the parameters of those steps."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=10, publish_every=3), batches=10)
    scene.trainer.run()
    assert scene.publisher.published == [3.0, 6.0, 9.0]
    assert scene.counters.version == 3
    assert scene.acknowledged_versions == [1, 2, 3]


def test_versions_are_some_time_apart(tmp_path: Path, scenes: list[_Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a least time a version that is due earlier is left out; the next that is due after it comes."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=6, publish_every=2, publish_least_s=0.2), batches=6)
    update = scene.agent.update

    def slow_update(batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        scene.clock.now_s += 0.06
        return update(batch, weight)

    monkeypatch.setattr(scene.agent, "update", slow_update)
    scene.trainer.run()
    assert scene.publisher.published == [2.0, 6.0]


def test_lost_version_is_asked_for_while_there_is_no_data(
    tmp_path: Path, scenes: list[_Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5 s, then ever more seldom, up to once a minute, also in later waits; not while training moves."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=20), batches=9)
    asked: list[float] = []
    until = [240.0, 390.0]
    monkeypatch.setattr(scene.publisher, "renew", lambda: asked.append(scene.clock.now_s))
    take = scene.source.take

    def slow_take(timeout_s: float) -> Batch | None:
        found = take(timeout_s)
        scene.clock.now_s += 4.0 if found else timeout_s and 1.0
        if until and scene.clock.now_s >= until[0] and not scene.source.batches:
            scene.source.batches.extend(batch(key) for key in range(11 if until.pop(0) > 240.0 else 4))
        return found

    monkeypatch.setattr(scene.source, "take", slow_take)
    scene.trainer.run()
    assert asked == [36.0 + after for after in (5, 15, 35, 75, 135, 195)] + [256.0 + after for after in (60, 120)]


def test_publishing_goes_on_from_the_restored_step(tmp_path: Path, scenes: list[_Scene]) -> None:
    """The rhythm counts all steps of the run, not those of the process."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=7, publish_every=3), batches=10)
    scene.counters.learner_steps = 5
    scene.trainer.run()
    assert scene.publisher.published == [1.0]


def test_policy_lag_is_that_of_actions_that_a_version_chose(tmp_path: Path, scenes: list[_Scene]) -> None:
    """Where people act, too, their actions have no version; a batch of those alone changes nothing."""
    scene = _scene(scenes, tmp_path, Limits())
    scene.counters.version = 500
    before = metrics.ITEM_POLICY_LAG._counts.sum()
    for versions in ((498, 0, 496), (0, 0, 0)):
        by = np.array(versions, np.uint64)
        scene.trainer._record(Batch(replace(batch(1, 2, 3).replay, first_versions=by)), 100.0)
        assert scene.progress.policy_lag == 3.0
    assert metrics.ITEM_POLICY_LAG._counts.sum() - before == 2


def test_items_that_stay_older_than_allowed_are_warned_of_once(tmp_path: Path, scenes: list[_Scene]) -> None:
    """As with more actors than `actor.count`. Not of the few that a restart leaves, nor where there is no bound."""
    late, good = (replace(batch(1, 2).replay, first_versions=np.array((5, by), np.uint64)) for by in (2, 3))
    for bound, batches, warnings in (
        (2, [late] * 30, 1),
        (2, [good] * 30, 0),
        (2, [late] * 9 + [good] + [late] * 9, 0),
        (-1, [late] * 30, 0),
    ):
        scene = _scene(scenes, tmp_path, Limits(max_policy_lag=bound))
        scene.counters.version = 5
        with capture_logs() as logs:
            for each in batches:
                scene.trainer._record(Batch(each), 100.0)
        assert [(line["policy_lag"], line["max_policy_lag"]) for line in logs] == [(3.0, 2)] * warnings


def test_table_without_priorities_gets_none(tmp_path: Path, scenes: list[_Scene]) -> None:
    """For a uniform table nothing is collected."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=2), batches=2)
    outputs = TrainerOutputs(None, scene.publisher, scene.checkpointer)
    Trainer(
        scene.agent,
        scene.source,
        outputs,
        scene.control,
        scene.counters,
        scene.progress,
        Limits(2),
        scene.clock,
    ).run()
    assert scene.priorities.keys == []


def test_threads_are_told_how_long_each_update_was(tmp_path: Path, scenes: list[_Scene]) -> None:
    """They choose by it how many make the next."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=3), batches=3)
    told: list[float] = []
    threads = Mock(spec=Threads, record=told.append)
    outputs = TrainerOutputs(None, scene.publisher, scene.checkpointer, threads=threads)
    arguments = (scene.control, scene.counters, scene.progress, Limits(3), scene.clock)
    Trainer(scene.agent, scene.source, outputs, *arguments).run()
    assert len(told) == 3


def test_missing_batches_are_waited_for_until_stopped(tmp_path: Path, scenes: list[_Scene]) -> None:
    """The state is WAITING, collected priorities are sent meanwhile, and `stop` ends it within a poll."""
    scene = _scene(scenes, tmp_path, Limits(), batches=2)
    scene.thread.start()
    scene.await_state(LearnerState.WAITING)
    scene.end()
    assert scene.reason == "test over"
    assert scene.counters.learner_steps == 2
    assert scene.priorities.flushes > 0


def test_pause_holds_training_and_resume_lets_it_go_on(tmp_path: Path, scenes: list[_Scene]) -> None:
    """While paused no step is taken though batches wait; afterwards all are."""
    scene = _scene(scenes, tmp_path, Limits(max_learner_steps=3), batches=3)
    scene.control.pause()
    scene.thread.start()
    scene.await_state(LearnerState.PAUSED)
    assert scene.counters.learner_steps == 0
    scene.control.resume()
    scene.thread.join(_WAIT_S)
    assert scene.counters.learner_steps == 3


def test_checkpoint_is_made_while_paused(tmp_path: Path, scenes: list[_Scene]) -> None:
    """A request does not wait for training to continue."""
    scene = _scene(scenes, tmp_path, Limits(), batches=0)
    scene.counters.learner_steps = 4
    scene.control.pause()
    scene.thread.start()
    saved = scene.control.request_checkpoint().result(_WAIT_S)
    assert saved.learner_steps == 4


def test_stop_ends_a_pause(tmp_path: Path, scenes: list[_Scene]) -> None:
    """A paused learner can be stopped."""
    scene = _scene(scenes, tmp_path, Limits())
    scene.control.pause()
    scene.thread.start()
    scene.await_state(LearnerState.PAUSED)
    scene.end()
    assert scene.reason == "test over"


def test_newer_learner_ends_training_even_without_data(tmp_path: Path, scenes: list[_Scene]) -> None:
    """A superseded learner does not stay, neither while it waits nor while it is paused."""
    scene = _scene(scenes, tmp_path, Limits())
    scene.publisher.error = StalePublisher("fencing token 1 was superseded by 2")
    with pytest.raises(StalePublisher):
        scene.trainer.run()
    scene.control.pause()
    with pytest.raises(StalePublisher):
        scene.trainer.run()


class _Broken(FakePriorities):
    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    def send(self, keys: object, priorities: object, table: int | None = None) -> None:
        raise self._fault


@pytest.mark.parametrize(
    "fault,error",
    [
        (FatalError("training has diverged"), FatalError("training has diverged")),
        (FailedPrecondition("fencing token 1 was superseded by 2"), StalePublisher("superseded by 2")),
    ],
    ids=["diverged", "superseded"],
)
def test_fault_of_a_part_ends_training(
    tmp_path: Path, scenes: list[_Scene], fault: Exception, error: Exception
) -> None:
    """What a background thread reports comes out of `run`; a refused fencing token means a newer learner."""
    scene = _scene(scenes, tmp_path, Limits(), batches=1)
    outputs = TrainerOutputs(_Broken(fault), scene.publisher, scene.checkpointer)
    trainer = Trainer(
        scene.agent,
        scene.source,
        outputs,
        scene.control,
        scene.counters,
        scene.progress,
        Limits(),
        scene.clock,
    )
    with pytest.raises(type(error), match=str(error)):
        trainer.run()
