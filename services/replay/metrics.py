"""What Prometheus sees of the tables, read from the state when it asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.replay.gate import Gate
from services.replay.replay import Replay
from services.replay.table import Table

_PREFIX = "tidemill_replay"


class ReplayCollector:
    """A Prometheus collector over a `Replay`. It only reads, so that it may run in another thread."""

    def __init__(self, replay: Replay, gate: Gate) -> None:
        """Collect from a state and the gate in front of it."""
        self._replay = replay
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        tables = self._replay.tables
        yield _gauge("items", "Items in the table.", [(t, t.size) for t in tables])
        yield _gauge("held_bytes", "Chunk bytes that items of the table need.", [(t, t.held_bytes) for t in tables])
        yield _gauge("priority_mass", "Sum of sampler weights.", [(t, t.priority_mass) for t in tables])
        for name, about in _COUNTERS.items():
            yield _counter(name, about, [(t, getattr(t.counters, name)) for t in tables])
        yield self._blocked()
        yield from self._totals()

    def _blocked(self) -> Metric:
        about = "Time during which at least one call of this side waited."
        family = CounterMetricFamily(f"{_PREFIX}_blocked_seconds", about, labels=("table", "side"))
        for table in self._replay.tables:
            for side in ("insert", "sample"):
                family.add_metric((table.config.name, side), self._gate.blocked_s(table, side))
        return family

    def _totals(self) -> Iterator[Metric]:
        replay = self._replay
        yield GaugeMetricFamily(f"{_PREFIX}_chunk_bytes", "Bytes of all chunks as stored.", value=replay.chunk_bytes)
        yield GaugeMetricFamily(f"{_PREFIX}_chunks", "Chunks of all tables.", value=replay.chunks)
        yield GaugeMetricFamily(f"{_PREFIX}_streams", "Streams known.", value=replay.streams.count)
        yield CounterMetricFamily(f"{_PREFIX}_env_steps", "Agent decisions stored.", value=replay.env_steps)


_COUNTERS = {
    "inserts": "Items inserted.",
    "samples": "Items sampled.",
    "sampled_age": "Sum over sampled items of the items inserted after them; by samples, their mean age in items.",
    "evictions": "Items removed because the table was full.",
    "priority_updates": "Priorities set.",
    "unknown_keys": "Keys of updates and deletions that were not in the table.",
}


def _gauge(name: str, about: str, values: list[tuple[Table, float]]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", about, labels=("table",))
    for table, value in values:
        family.add_metric((table.config.name,), value)
    return family


def _counter(name: str, about: str, values: list[tuple[Table, float]]) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", about, labels=("table",))
    for table, value in values:
        family.add_metric((table.config.name,), value)
    return family
