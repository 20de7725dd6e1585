"""Metrics of a table, for callers and for Prometheus, read from its parts when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tidemill.replay.table_config import TableConfig, TableDescription
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.writer import BOUNDS_S
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table


def describe(table: Table, replay: ReplayState, admission: AdmissionQueue, log: ReplayLog | None) -> TableDescription:
    """Return a table's sizes, counters, limiter state and, if there is a log, the state of that."""
    counters = table.counters
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
        env_steps=log.env_steps(table) if log is not None else counters.env_steps,
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
    """A Prometheus collector over a `ReplayState`. It only reads, so that it may run in another thread."""

    def __init__(self, replay: ReplayState, admission: AdmissionQueue, log: ReplayLog | None = None) -> None:
        """Collect from a state, the admission in front of it and the log behind it."""
        self._replay = replay
        self._admission = admission
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        tables = self._replay.tables
        yield _gauge("items", "Items in the table.", [(t, t.size) for t in tables])
        yield _gauge(
            "held_bytes",
            "Bytes of chunks and payloads that items of the table need.",
            [(t, t.held_bytes) for t in tables],
        )
        leads = [(t, t.limiter.diff) for t in tables]
        yield _gauge("limiter_diff", "How far inserts are ahead by the rate limiter, in samples.", leads)
        yield _gauge("total_weight", "Sum of sampler weights.", [(t, t.total_weight) for t in tables])
        for name, about in _COUNTERS.items():
            yield _counter(name, about, [(t, getattr(t.counters, name)) for t in tables])
        yield self._blocked()
        yield self._waiting()
        yield from self._totals()
        if self._log is not None:
            yield from _log_metrics(self._log)

    def _blocked(self) -> Metric:
        about = "Time during which at least one call of this side waited."
        family = CounterMetricFamily(f"{_PREFIX}_blocked_seconds", about, labels=("table", "side"))
        for table in self._replay.tables:
            for side in ("insert", "sample"):
                family.add_metric((table.config.name, side), self._admission.blocked_s(table, side))
        return family

    def _waiting(self) -> Metric:
        family = GaugeMetricFamily(
            f"{_PREFIX}_waiting",
            "Calls that the rate limiter makes wait, by side (insert, sample).",
            labels=("table", "side"),
        )
        for table in self._replay.tables:
            for side in ("insert", "sample"):
                family.add_metric((table.config.name, side), self._admission.waiting(table, side))
        return family

    def _totals(self) -> Iterator[Metric]:
        replay, budget = self._replay, self._replay.budget
        yield GaugeMetricFamily(f"{_PREFIX}_chunk_bytes", "Bytes of all chunks as stored.", value=replay.chunk_bytes)
        yield GaugeMetricFamily(f"{_PREFIX}_chunks", "Chunks of all tables.", value=replay.chunks)
        for name, (about, value) in {
            "stored_bytes": ("Bytes of memory behind all that is stored.", budget.size_bytes + budget.beside_bytes),
            "stored_limit_bytes": (
                "Limit of `tidemill_replay_stored_bytes`: half of the memory budget; 0 means no limit.",
                budget.stored_limit,
            ),
            "batch_bytes": ("Bytes of memory behind batches that their callers have not taken.", budget.batch_bytes),
            "message_bytes": ("Bytes of memory behind messages that wait to be stored.", budget.message_bytes),
        }.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", about, value=value)
        about = "Items removed because memory had no room for what came."
        yield CounterMetricFamily(f"{_PREFIX}_memory_evictions", about, value=replay.memory.evictions)
        yield GaugeMetricFamily(
            f"{_PREFIX}_streams", "Streams of all actors that the service remembers.", value=replay.streams.count
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_env_steps", "Agent decisions stored in all tables.", value=replay.env_steps
        )


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
    for name, (about, value) in gauges.items():
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", about, value=value)
    counters = {
        "corrupt_records": ("Records and chunks found corrupt or missing on disk.", log.corrupt_records),
        "missing_records": ("Records missing from the log at the last start.", recovered.corruption.missing_records),
        "cold_reads": ("Chunks read from the log because they were no longer in memory.", blobs.reads),
        "cold_read_bytes": ("Bytes of the chunks read from the log.", blobs.read_bytes),
        "snapshots": ("Snapshots taken.", log.snapshots.taken),
    }
    for name, (about, value) in counters.items():
        yield CounterMetricFamily(f"{_PREFIX}_{name}", about, value=value)
    about = "Time the disk took to confirm what was written to the log."
    reached = [*map(str, BOUNDS_S), "+Inf"]
    buckets = list(zip(reached, itertools.accumulate(log.fsync.counts), strict=True))
    yield HistogramMetricFamily(f"{_PREFIX}_fsync_seconds", about, buckets=buckets, sum_value=log.fsync.sum_s)


_COUNTERS = {
    "inserts": "Items inserted.",
    "samples": "Items sampled.",
    "sampled_age": "Sum over sampled items of the items inserted after them; by samples, their mean age in items.",
    "evictions": "Items removed because the table was full.",
    "priority_updates": "Priorities set.",
    "corrupt_items": "Items dropped because bytes they need were corrupt or missing on disk.",
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
