"""Metrics of an actor that waits."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.services.actor.acting.metrics import WriterCollector


@dataclass
class _Writer:
    blocked_s: float = 0.0
    restarts: int = 0
    dropped_chunks: int = 0
    unacknowledged_chunks: int = 0


def test_wait_for_parameters_is_a_part_of_the_time_that_the_actor_waits() -> None:
    """Whatever it waits for, the learner is behind."""
    collector = WriterCollector(_Writer(blocked_s=2.0), lambda: 3.0)  # type: ignore[arg-type]
    (blocked,) = [metric for metric in collector.collect() if metric.name == "tidemill_actor_blocked_seconds"]
    assert [sample.value for sample in blocked.samples] == [5.0]


def _ratio(collector: WriterCollector) -> float:
    (family,) = [metric for metric in collector.collect() if metric.name == "tidemill_actor_blocked_ratio"]
    return float(family.samples[0].value)


def test_blocked_ratio_is_of_the_time_since_the_last_look() -> None:
    """2 of 8 seconds, then 4 of 4, then none."""
    writer, now = _Writer(), 100.0
    collector = WriterCollector(writer, lambda: 0.0, clock=lambda: now)  # type: ignore[arg-type]
    now, writer.blocked_s = 108.0, 2.0
    assert _ratio(collector) == 0.25
    now, writer.blocked_s = 112.0, 6.0
    assert _ratio(collector) == 1.0
    now = 115.0
    assert _ratio(collector) == 0.0
