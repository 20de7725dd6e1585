"""What a server's state takes of its memory, and how a message gets room in it."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ResourceExhausted
from tidemill.services.replay.append import Appending, Plan
from tidemill.services.replay.chunk_store import RECORD_BYTES, ChunkStore
from tidemill.services.replay.memory_budget import MemoryBudget
from tidemill.services.replay.streams import Epoch, StreamRegistry
from tidemill.services.replay.table import Table
from tidemill.types import Signature


class StoredMemory:
    """Holds all that is stored within the budget: tables give up items for what comes, and streams have their share.

    Attributes:
        evictions: Items that tables gave up.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        tables: Mapping[str, Table],
        stores: Mapping[Signature, ChunkStore],
        streams: StreamRegistry,
        *,
        durable: bool,
    ) -> None:
        """Watch over tables, chunks and streams; with a log (`durable`) chunks leave memory by themselves."""
        self._budget, self._tables, self._stores, self._streams = budget, tables, stores, streams
        self._durable = durable
        self.evictions = 0

    def count(self) -> None:
        """Tell the budget of all that is stored but for the chunks that a log has."""
        chunks = sum(store.record_bytes for store in self._stores.values())
        if not self._durable:
            chunks += sum(store.size_bytes for store in self._stores.values())
        items = sum(table.items.memory_bytes for table in self._tables.values())
        self._budget.beside_bytes = chunks + items + self._streams.memory_bytes

    def make_room(self, appending: Appending, planned: Plan) -> list[Table]:
        """Make room for a message; return the tables that gave up items for it.

        Raises:
            ResourceExhausted: there is none, or the streams have more than their share.
        """
        if not planned.chunks:
            return []
        size = 0 if self._durable else sum(sum(map(len, chunk.blocks)) for chunk in planned.chunks)
        if size and self._budget.share_limit:
            self._check_tails(appending.epoch, size)
        size += RECORD_BYTES * len(planned.chunks)
        if not self._excess(appending, planned, size):
            return []
        self.count()  # items may have left since
        pressed = [
            table
            for table in sorted(appending.tables, key=lambda table: -table.held_bytes)
            if self._press(table, appending, planned, size)
        ]
        if excess := self._excess(appending, planned, size):
            raise ResourceExhausted(
                f"no memory for {size} bytes of chunks: {self._budget.stored_limit} bytes may be stored (half of "
                f"max_memory_mib), which streams and tables that this call does not name exceed by {excess} with them"
            )
        return pressed

    def _press(self, table: Table, appending: Appending, planned: Plan, size: int) -> bool:
        """Let a table give up items while there is no room for a message; return whether it did."""
        evictions, least = self.evictions, 1
        while (excess := self._excess(appending, planned, size)) and table.size:
            asked = max(excess, least)
            self.evictions += table.give_up(asked)
            least = 2 * asked  # others may hold the same chunks: it must come to an end all the same
            self.count()
        return self.evictions > evictions

    def _excess(self, appending: Appending, planned: Plan, size: int) -> int:
        """Return by how much a message would go beyond what may be stored; `size` is that of its chunks."""
        for batch in planned.items:
            size += appending.tables[batch.table_index].items.bytes_for(batch.payloads, len(batch.lengths))
        return self._budget.excess_bytes(size)

    def _check_tails(self, epoch: Epoch, size: int) -> None:
        """Hold the newest chunks of all streams within their share, and let idle ones go first.

        An actor whose streams hold less than their part is not refused for what others hold.
        """
        share = self._budget.share_limit
        while (held := sum(store.tail_bytes for store in self._stores.values())) + size > share:
            if epoch.tail_bytes + size <= share // self._streams.actors:
                return
            if not self._streams.forget_idle():
                raise ResourceExhausted(
                    f"no memory for {size} bytes of chunks: the newest chunks of all streams have {held} bytes, "
                    f"at most {share} may be kept for items yet to come (a quarter of max_memory_mib)"
                )
