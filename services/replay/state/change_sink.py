"""What a state reports its changes to, so that it does not depend on the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.arrays import Ints
from tidemill.replay.table_config import TableConfig
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.state.streams import Epoch
from tidemill.services.replay.tables.table import Table

TABLE_NUMBERS = 2**16
"""A log names tables modulo this: no two that exist have the same name, nor a dropped one that still names chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class NewChunks:
    """Chunks that were just stored.

    Attributes:
        store: Where.
        slots: Their slots, [N], in the order they came; some may be free again.
        blobs: Their blobs, [N].
    """

    store: ChunkStore
    slots: Ints
    blobs: Sequence[bytes]


class ChangeSink:
    """Takes every change of a state, in order. This one keeps none of them, for a state without a log."""

    @property
    def sequence(self) -> int:
        """Number of the newest change; 0 before the first."""
        return 0

    def begin(self) -> None:
        """Note that a change is about to be made: what is described of the state now is without it."""

    def know_table(self, table: Table) -> None:
        """Note a table that was restored from what the sink holds."""

    def log_table(self, table: Table) -> None:
        """Report a new table, a new configuration of one, or when its newest items came."""

    def log_drop(self, table: Table, names: Mapping[int, TableConfig]) -> None:
        """Report that a table was dropped, and the dropped tables whose numbers still name chunks."""

    def log_epoch(self, epoch: Epoch, closed: Sequence[int]) -> None:
        """Report a new epoch, and the numbers of those it has closed."""

    def log_changes(self, env_steps: int, chunks: NewChunks | None, tables: Sequence[tuple[Table, Ints]]) -> None:
        """Report new chunks, and for each table the slots of new items, [N]; it knows itself which went.

        Args:
            env_steps: Agent decisions stored so far, in all tables.
            chunks: The new chunks.
            tables: Tables that changed.
        """
