"""Metrics of a table, for callers and for Prometheus, read from its parts when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tidemill.replay.table_config import TableConfig, TableDescription
from tidemill.services.replay.admission import AdmissionQueue, Side
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.writer import BOUNDS_S
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table


def describe(table: Table, replay: ReplayState, admission: AdmissionQueue, log: ReplayLog | None) -> TableDescription:
    """Return a table's sizes, counters, limiter state and, if there is a log, the state of that."""
    counters = table.counters
    stored = log.stored_steps(table) if log is not None else replay.stored_steps(table)
    return TableDescription(
        config=table.config,
        items=table.size,
        chunk_bytes=replay.chunk_bytes,
        chunks=replay.chunks,
        streams=replay.streams.count,
        inserts=counters.inserts,
        samples=counters.samples,
        evictions=counters.evictions,
        priority_updates=counters.priority_updates,
        unknown_keys=counters.unknown_keys,
        insert_blocked=not table.can_insert(),
        sample_blocked=not table.can_sample(),
        insert_blocked_s=admission.blocked_s(table, "insert"),
        sample_blocked_s=admission.blocked_s(table, "sample"),
        env_steps=stored.env_steps,
        total_weight=table.total_weight,
        held_bytes=table.held_bytes,
        limiter_diff=table.limiter.diff,
        mean_sampled_age=counters.sampled_age / counters.samples if counters.samples else 0.0,
        corrupt_items=counters.corrupt_items,
        rate_limiter_off=not table.limiter.is_on,
        updated_fields=tuple(
            name
            for name in TableConfig.__dataclass_fields__
            if getattr(table.config, name) != getattr(table.declared, name)
        ),
        fencing_token=table.fencing_token,
        timed_from_s=table.times.first_s,
        store_id=stored.store_id,
        count_id=stored.count_id,
        **(_log_fields(log) if log is not None else {"memory_bytes": replay.chunk_bytes}),
    )


def _log_fields(log: ReplayLog) -> dict[str, Any]:
    return {
        "memory_bytes": log.recovered.budget.size_bytes,
        "log_bytes": log.journal.size_bytes,
        "log_segments": len(log.journal.segment_sizes),
        "log_full": log.is_full,
        "corrupt_records": log.corrupt_records,
        "snapshot": log.recovered.snapshots.newest,
        "fsync_bounds_s": BOUNDS_S,
        "fsync_counts": tuple(log.fsync.counts),
        "fsync_sum_s": log.fsync.sum_s,
    }


_PREFIX = "tidemill_replay"

EXPECTED = Gauge(f"{_PREFIX}_expected", "Shards the table is divided over, this one included.")


class ReplayCollector:
    """A Prometheus collector over a `ReplayState`. It only reads, so that it may run in another thread.

    Prometheus takes a counter that falls for one that began again at 0, and adds its whole value to the rate. A table's
    counters fall when a batch that was drawn comes back, and at a kill. They are therefore shown from the start of the
    process, and never lower than before.
    """

    def __init__(self, replay: ReplayState, admission: AdmissionQueue, log: ReplayLog | None = None) -> None:
        """Collect from a state with its restored tables, the admission in front of it and the log behind it."""
        self._replay = replay
        self._admission = admission
        self._log = log
        names = _COUNTERS.keys() - {"corrupt_items"}  # those found at the start count
        self._restored = {(name, t.count_id): getattr(t.counters, name) for name in names for t in replay.tables}
        self._shown: dict[tuple[str, int], float] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        tables = self._replay.tables
        for name, (about, of_table) in _GAUGES.items():
            yield _by_table(GaugeMetricFamily, name, about, [(table, of_table(table)) for table in tables])
        for name, about in _COUNTERS.items():
            counts = [(table, self._since_start(name, table)) for table in tables]
            yield _by_table(CounterMetricFamily, name, about, counts)
        about = "Time during which at least one call of this side waited."
        yield _by_side(CounterMetricFamily, "blocked_seconds", about, tables, self._admission.blocked_s)
        about = "Calls that the rate limiter makes wait, by side (insert, sample)."
        yield _by_side(GaugeMetricFamily, "waiting", about, tables, self._admission.waiting)
        yield from self._totals()
        if self._log is not None:
            yield from _log_metrics(self._log)

    def _since_start(self, name: str, table: Table) -> float:
        key = name, table.count_id
        count = getattr(table.counters, name) - self._restored.get(key, 0)
        self._shown[key] = max(count, self._shown.get(key, 0))
        return self._shown[key]

    def _totals(self) -> Iterator[Metric]:
        replay, budget = self._replay, self._replay.budget
        gauges = {
            "chunk_bytes": ("Bytes of all chunks as stored.", replay.chunk_bytes),
            "chunks": ("Chunks of all tables.", replay.chunks),
            "stored_bytes": ("Bytes of memory behind all that is stored.", budget.size_bytes + budget.beside_bytes),
            "stored_limit_bytes": (
                "Limit of `tidemill_replay_stored_bytes`: half of the memory budget; 0 means no limit.",
                budget.stored_limit,
            ),
            "batch_bytes": ("Bytes of memory behind batches that their callers have not taken.", budget.batch_bytes),
            "message_bytes": ("Bytes of memory behind messages that wait to be stored.", budget.message_bytes),
            "streams": ("Streams of all actors that the service remembers.", replay.streams.count),
        }
        counters = {
            "memory_evictions": ("Items removed because memory had no room for what came.", replay.memory.evictions),
            "env_steps": ("Agent decisions stored in all tables.", replay.env_steps),
        }
        yield from _totals(GaugeMetricFamily, gauges)
        yield from _totals(CounterMetricFamily, counters)


def _log_metrics(log: ReplayLog) -> Iterator[Metric]:
    journal, blobs, recovered = log.journal, log.blobs, log.recovered
    gauges = {
        "log_bytes": ("Bytes of the log on disk.", journal.size_bytes),
        "log_segments": ("Segment files of the log.", len(journal.segment_sizes)),
        "log_pending_bytes": ("Bytes on their way to the log.", log.commits.pending_bytes),
        "log_full": ("1 while the disk has no room and nothing is acknowledged.", int(log.is_full)),
        "memory_bytes": ("Bytes of chunks in memory, as compressed.", recovered.budget.size_bytes),
        "recovery_seconds": ("Time the last start took to restore the tables.", recovered.took_s),
    }
    counters = {
        "corrupt_records": ("Records and chunks found corrupt or missing on disk.", log.corrupt_records),
        "missing_records": ("Records missing from the log at the last start.", recovered.corruption.missing_records),
        "cold_reads": ("Chunks read from the log because they were no longer in memory.", blobs.reads),
        "cold_read_bytes": ("Bytes of the chunks read from the log.", blobs.read_bytes),
        "snapshots": ("Snapshots taken.", log.snapshots.taken),
    }
    yield from _totals(GaugeMetricFamily, gauges)
    yield from _totals(CounterMetricFamily, counters)
    about = "Time the disk took to confirm what was written to the log."
    reached = [*map(str, BOUNDS_S), "+Inf"]
    buckets = list(zip(reached, itertools.accumulate(log.fsync.counts), strict=True))
    yield HistogramMetricFamily(f"{_PREFIX}_fsync_seconds", about, buckets=buckets, sum_value=log.fsync.sum_s)


_GAUGES: Mapping[str, tuple[str, Callable[[Table], float]]] = {
    "items": ("Items in the table.", lambda t: t.size),
    "held_bytes": ("Bytes of chunks and payloads that items of the table need.", lambda t: t.held_bytes),
    "limiter_diff": ("How far inserts are ahead by the rate limiter, in samples.", lambda t: t.limiter.diff),
    "total_weight": ("Sum of sampler weights.", lambda t: t.total_weight),
}

_COUNTERS = {
    "inserts": "Items inserted.",
    "samples": "Items sampled.",
    "sampled_age": "Sum over sampled items of the items inserted after them; by samples, their mean age in items.",
    "evictions": "Items removed because the table was full.",
    "priority_updates": "Priorities set.",
    "corrupt_items": "Items dropped because bytes they need were corrupt or missing on disk.",
    "unknown_keys": "Keys of updates and deletions that were not in the table.",
}

_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _by_table(family: _Family, name: str, about: str, values: list[tuple[Table, float]]) -> Metric:
    metric = family(f"{_PREFIX}_{name}", about, labels=("table",))
    for table, value in values:
        metric.add_metric((table.config.name,), value)
    return metric


def _by_side(
    family: _Family, name: str, about: str, tables: tuple[Table, ...], value: Callable[[Table, Side], float]
) -> Metric:
    metric = family(f"{_PREFIX}_{name}", about, labels=("table", "side"))
    for table in tables:
        metric.add_metric((table.config.name, "insert"), value(table, "insert"))
        metric.add_metric((table.config.name, "sample"), value(table, "sample"))
    return metric


def _totals(family: _Family, values: Mapping[str, tuple[str, float]]) -> Iterator[Metric]:
    for name, (about, value) in values.items():
        yield family(f"{_PREFIX}_{name}", about, value=value)
