"""Sizes the mirror: the decoded part of the table that the learner keeps, so that each step is sent once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemill import container_limits, linux
from tidemill.logger import LateLogger
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, Reserve, RowKeeper, TableMirror
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.replay.table_config import TableConfig

_MOST_SLOTS = 2**21
_SPARE = 1.1  # chunks that streams hold beyond the table, and short ones at the ends of streams

_log = LateLogger()


@dataclass(frozen=True, slots=True)
class MirrorMemory:
    """Memory that a mirror may use.

    Attributes:
        limit_bytes: Most bytes of its rows; 0 for no mirror.
        reserve: Gives it.
        elsewhere: Returns what keeps some of the columns, given how many rows there are; None if all are kept here.
        must_be_whole: Whether a mirror of a part of the table is not wanted.
    """

    limit_bytes: int
    reserve: Reserve = reserve_private
    elsewhere: Callable[[int], RowKeeper] | None = None
    must_be_whole: bool = False


def open_mirror(
    table: TableConfig,
    *,
    stride: int,
    chunk_length: int,
    batch_size: int,
    hold: int,
    shards: int,
    memory: MirrorMemory,
) -> TableMirror | None:
    """Return a mirror of the table, or of a part of it; None if the memory allowed is too small to be useful.

    Args:
        table: The whole table.
        stride: Steps from the start of an item to that of the next.
        chunk_length: Steps of a chunk.
        batch_size: Items of one sample.
        hold: Samples that may be drawn before one is read.
        shards: Over how many shards the table is spread; 0 for a single server.
        memory: What it may have.
    """
    if not memory.limit_bytes:
        return None
    servers = max(shards, 1)
    step_bytes = sum(column.step_bytes for column in table.signature)
    least = least_slots(batch_size, table.max_item_steps, chunk_length, hold)
    of_table = -(-int(_SPARE * table.max_items * stride) // (chunk_length * servers))
    parts = 2 * shards or 1
    taking = servers if memory.elsewhere is None else parts  # a GPU's memory is taken whole, the host's as it is filled
    affordable = memory.limit_bytes // (taking * chunk_length * step_bytes)
    slots = min(of_table + least, affordable, _MOST_SLOTS)
    useful = of_table + least if memory.must_be_whole else least
    if slots < useful:
        needed = taking * useful * chunk_length * step_bytes
        _log.info(
            "no mirror of the table: too little memory", needed_mib=needed >> 20, allowed_mib=memory.limit_bytes >> 20
        )
        return None
    taken = taking * slots * chunk_length * step_bytes
    keeper = memory.elsewhere(parts * slots * chunk_length) if memory.elsewhere is not None else None
    _log.info("mirror of the table", mib=taken >> 20, share=round(min(slots / of_table, 1.0), 2))
    return TableMirror(table.signature, MirrorSize(slots, chunk_length, hold), parts, memory.reserve, keeper)


def free_bytes(meminfo: Path = linux.PROC / "meminfo") -> int:
    """Return the memory that is free for this process: of its container, or of the machine, half of it if unknown."""
    free = linux.available_memory_bytes(meminfo)
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    container = container_limits.free_memory_bytes()
    return free if container is None else min(free, container)
