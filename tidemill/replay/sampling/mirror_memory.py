"""Sizes the mirror: the decoded part of the table that a dataset or a learner keeps, so that each step is sent once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tidemill import container_limits, linux
from tidemill.errors import InvalidArgument
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_at_least_1, check_range
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, Reserve, RowKeeper, TableMirror
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.replay.sampling.source import Connect, OpenedSource, SampleShape
from tidemill.replay.table_config import TableConfig

_MOST_SLOTS = 2**21
_SPARE = 1.1  # chunks that streams hold beyond the table, and short ones at the ends of streams

_log = LateLogger()


@dataclass(frozen=True, slots=True)
class HostRows:
    """Keeps decoded steps of each table, which pays for images: each crosses the wire and is decoded once (`Keep`).

    Steps for which there is no room come with every batch.

    Attributes:
        mib: Memory for the steps of each table, uncompressed, in MiB.
        chunk_length: The greatest `chunk_length` of the writers.
    """

    mib: int
    chunk_length: int = 16

    def __post_init__(self) -> None:
        check_at_least_1("keep.mib", self.mib)
        check_range("keep.chunk_length", self.chunk_length, 1, 1024)

    def open(self, table: TableConfig, shape: SampleShape, connect: Connect, _stack: ExitStack) -> OpenedSource:
        """Start to sample (`Keep`).

        Raises:
            InvalidArgument: The memory does not hold the steps of the samples under way.
        """
        parts = shape.parts
        slot_bytes = self.chunk_length * sum(column.step_bytes for column in table.signature)
        least = least_slots(shape.batch_size, table.max_item_steps, self.chunk_length, shape.hold)
        useful = max(table.max_items * (1 + table.max_item_steps // self.chunk_length), least)
        slots = min(self.mib * 2**20 // (slot_bytes * parts), useful, _MOST_SLOTS)
        if slots < least:
            needed = -(-least * slot_bytes * parts // 2**20)
            raise InvalidArgument(
                f"keep.mib is {self.mib}, must be at least {needed} for batches of {shape.batch_size} items"
            )
        mirror = TableMirror(table.signature, MirrorSize(slots, self.chunk_length, shape.hold), parts)
        return OpenedSource(connect(mirror, shape.in_flight), mirror)


def open_mirror(
    table: TableConfig,
    shape: SampleShape,
    *,
    stride: int,
    chunk_length: int,
    limit_bytes: int,
    reserve: Reserve = reserve_private,
    elsewhere: Callable[[int], RowKeeper] | None = None,
    must_be_whole: bool = False,
) -> TableMirror | None:
    """Return a mirror of the table, or of a part of it; None if the memory allowed is too small to be useful.

    Args:
        table: The whole table.
        shape: What is sampled into it.
        stride: Steps from the start of an item to that of the next.
        chunk_length: Steps of a chunk.
        limit_bytes: Most bytes of its rows; 0 for no mirror.
        reserve: Gives the memory of the rows.
        elsewhere: Returns what keeps some of the columns, given how many rows there are; None if all are kept here.
        must_be_whole: Whether a mirror of a part of the table is not wanted.
    """
    if not limit_bytes:
        return None
    servers = max(shape.shards, 1)
    step_bytes = sum(column.step_bytes for column in table.signature)
    least = least_slots(shape.batch_size, table.max_item_steps, chunk_length, shape.hold)
    of_table = -(-int(_SPARE * table.max_items * stride) // (chunk_length * servers))
    parts = shape.parts
    taking = servers if elsewhere is None else parts  # a GPU's memory is taken whole, the host's as it is filled
    affordable = limit_bytes // (taking * chunk_length * step_bytes)
    slots = min(of_table + least, affordable, _MOST_SLOTS)
    useful = of_table + least if must_be_whole else least
    if slots < useful:
        needed = taking * useful * chunk_length * step_bytes
        _log.info("no mirror of the table: too little memory", needed_mib=needed >> 20, allowed_mib=limit_bytes >> 20)
        return None
    taken = taking * slots * chunk_length * step_bytes
    keeper = elsewhere(parts * slots * chunk_length) if elsewhere is not None else None
    _log.info("mirror of the table", mib=taken >> 20, share=round(min(slots / of_table, 1.0), 2))
    return TableMirror(table.signature, MirrorSize(slots, chunk_length, shape.hold), parts, reserve, keeper)


def free_bytes(meminfo: Path = linux.PROC / "meminfo") -> int:
    """Return the memory that is free for this process: of its container, or of the machine, half of it if unknown."""
    free = container_limits.available_memory_bytes(meminfo)
    return container_limits.machine_memory_bytes() // 2 if free is None else free
