"""The rows of a table in this process's own memory, as much of it as is allowed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from tidemill.errors import InvalidArgument
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.source import Connect, OpenedSource
from tidemill.replay.table_config import TableConfig

_MAX_SLOTS = 2**21


@dataclass(frozen=True, slots=True)
class HostRows:
    """Keeps decoded steps of each table, so that each crosses the wire once (`Keep`).

    Attributes:
        mib: Memory for each table, in MiB; 0 keeps nothing.
        chunk_length: The greatest `chunk_length` of the writers.
        hold: Samples that may be drawn before one is read.
        servers: How many servers the table is spread over.
    """

    mib: int
    chunk_length: int
    hold: int
    servers: int = 1

    def open(
        self, table: TableConfig, batch_size: int, in_flight: int, connect: Connect, _stack: ExitStack
    ) -> OpenedSource:
        """Start to sample (`Keep`).

        Raises:
            InvalidArgument: The memory does not hold the steps of the samples under way.
        """
        mirror = self._mirror(table, batch_size) if self.mib else None
        return OpenedSource(connect(mirror, in_flight), mirror)

    def _mirror(self, table: TableConfig, batch_size: int) -> TableMirror:
        """Return a mirror in so much memory, or of as much of the table as is of use."""
        parts = 1 if self.servers == 1 else 2 * self.servers  # room for servers that take the place of others
        slot_bytes = self.chunk_length * sum(column.step_bytes for column in table.signature)
        least = least_slots(batch_size, table.max_item_steps, self.chunk_length, self.hold)
        useful = max(table.max_items * (1 + table.max_item_steps // self.chunk_length), least)
        slots = min(self.mib * 2**20 // (slot_bytes * parts), useful, _MAX_SLOTS)
        if slots < least:
            needed = -(-least * slot_bytes * parts // 2**20)
            raise InvalidArgument(
                f"mirror_mib is {self.mib}, must be 0 or at least {needed} for batches of {batch_size} items"
            )
        return TableMirror(table.signature, MirrorSize(slots, self.chunk_length, self.hold), parts)
