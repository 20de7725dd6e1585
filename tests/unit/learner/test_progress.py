"""Rates, waiting time and metrics, in numbers."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.clock import Clock
from tidemill.learner.status import LearnerState
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.progress import Progress


def _progress(clock: Clock, counters: Counters) -> Progress:
    return Progress(counters, log_every_s=10.0, clock=clock)


def test_rates_are_over_the_newest_seconds() -> None:
    """10 steps a second for 10 s, then 20 a second for 10 s: 20, not the mean of the run."""
    clock, counters = Clock(), Counters()
    progress = _progress(clock, counters)
    for second in range(20):
        for _ in range(10 if second < 10 else 20):
            counters.learner_steps += 1
            progress.record_step(0.01, {})
        clock.now_s += 1.0
        progress.tick()
    assert progress.steps_per_s == pytest.approx(20.0)
    assert progress.state is LearnerState.TRAINING


def test_rate_after_a_resume_does_not_count_restored_steps() -> None:
    """A learner that restored a million steps did not take them in its first second."""
    clock, counters = Clock(), Counters()
    progress = _progress(clock, counters)
    counters.learner_steps = 1_000_000
    progress.restart()
    clock.now_s += 2.0
    counters.learner_steps += 4
    progress.tick()
    assert progress.steps_per_s == pytest.approx(2.0)


def test_decisions_are_told_once_they_are_restored() -> None:
    """Until then they are unknown: a learner that starts again seemed to begin at 0."""
    counters, read = Counters(), partial(REGISTRY.get_sample_value, "tidemill_learner_env_steps")
    progress = _progress(Clock(), counters)
    assert math.isnan(read() or 0.0)
    counters.load_state({"learner_steps": 9, "version": 1, "base_env_steps": 5_000})
    progress.restart()
    assert read() == 5_000


def test_wait_fraction_is_the_share_of_time_without_data() -> None:
    """Half a second of waiting in each of 5 seconds is one half; a pause does not count."""
    clock = Clock()
    progress = _progress(clock, Counters())
    for _ in range(5):
        progress.record_wait(0.5, got_batch=True)
        progress.record_pause(0.5)
        clock.now_s += 1.0
    progress.tick()
    assert progress.wait_fraction == pytest.approx(0.5)


def test_state_is_waiting_only_when_no_batch_came() -> None:
    """A training learner that its rate limiter holds back a little is still training."""
    progress = _progress(Clock(), Counters())
    progress.record_step(0.01, {})
    progress.record_wait(0.1, got_batch=True)
    states = [progress.state]
    progress.record_wait(0.2, got_batch=False)
    states.append(progress.state)
    assert states == [LearnerState.TRAINING, LearnerState.WAITING]


def test_metrics_are_read_once_a_second() -> None:
    """Between two reads nothing leaves the device; names that an update leaves out keep their value."""
    clock = Clock()
    progress = _progress(clock, Counters())
    progress.record_step(0.01, {"loss": torch.tensor(3.0), "actor_loss": torch.tensor(1.0)})
    assert progress.metrics == {}
    clock.now_s += 1.0
    progress.record_step(0.01, {"loss": torch.tensor(2.0)})
    assert progress.metrics == {"loss": 2.0, "actor_loss": 1.0}
    assert REGISTRY.get_sample_value("tidemill_learner_agent", {"name": "loss"}) == 2.0


def test_stalled_time_grows_without_steps() -> None:
    """The alarm on it rings when nothing moves, for whatever reason."""
    clock = Clock()
    progress = _progress(clock, Counters())
    progress.record_step(0.01, {})
    clock.now_s += 1.0
    progress.tick()
    assert REGISTRY.get_sample_value("tidemill_learner_stalled_seconds") == 0.0
    clock.now_s += 30.0
    progress.record_wait(0.2, got_batch=False)
    assert REGISTRY.get_sample_value("tidemill_learner_stalled_seconds") == 30.0


def test_log_line_warns_of_metrics_that_are_not_finite() -> None:
    """A diverged run says so."""
    clock = Clock()
    progress = _progress(clock, Counters())
    progress.record_step(0.01, {"loss": torch.tensor(math.nan)})
    clock.now_s += 10.0
    with capture_logs() as logs:
        progress.tick()
    assert [line["log_level"] for line in logs] == ["warning", "info"]
    assert logs[0]["names"] == ["loss"]


def test_metrics_are_told_once_per_second_with_the_learners_own() -> None:
    """Not at every step, and not while there are no updates; the last ones at the end."""
    clock, counters = Clock(), Counters()
    progress = _progress(clock, counters)
    told: list[tuple[int, dict[str, float]]] = []
    progress.on_update = lambda step, metrics: told.append((step, dict(metrics)))
    for step in range(1, 36):
        clock.now_s += 0.1
        counters.learner_steps = step
        progress.record_step(0.01, {"loss": torch.tensor(step / 2)})
    assert len(told) == 3
    assert [metrics["loss"] for _, metrics in told] == [step / 2 for step, _ in told]
    assert told[0][1].keys() == {"loss", "env_steps", "steps_per_s", "wait_fraction", "policy_lag"}
    progress.finish()
    assert told[-1][0] == 35
    clock.now_s += 5.0
    progress.tick()
    assert len(told) == 4


def test_stall_is_seen_while_the_training_thread_hangs() -> None:
    """The time since the newest update grows whether or not that thread does anything; a run that is over has none."""
    clock, counters = Clock(), Counters()
    progress = _progress(clock, counters)
    clock.now_s += 2.0
    progress.record_step(0.01, {})
    clock.now_s += 300.0
    assert REGISTRY.get_sample_value("tidemill_learner_stalled_seconds") == 300.0
    progress.finish()
    assert REGISTRY.get_sample_value("tidemill_learner_stalled_seconds") == 0.0
