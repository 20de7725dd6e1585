"""Describes a table: its sizes, counters, limiter and log, gathered from the parts that know them."""

from __future__ import annotations

from typing import Any

from tidemill.replay.table_config import TableConfig, TableDescription
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.sync import BOUNDS_S
from tidemill.services.replay.state import ReplayState
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
        env_steps=log.commits.env_steps if log is not None else replay.env_steps,
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
