"""Reasons why a table has no batch for a reader that waits, as its servers tell them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tidemill.errors import TidemillError
from tidemill.logger import LateLogger
from tidemill.replay.client import ReplayClient
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig, TableDescription

_ASK_S = 0.5
_LATE_S = 10.0

_log = LateLogger()


class LateBatches:
    """Asks the servers of a table why no batch comes, and logs the answer once."""

    def __init__(
        self, directory: ShardDirectory, table: TableConfig, batch_size: int, *, takes_fewer: str = ""
    ) -> None:
        """Ask nothing yet.

        Args:
            directory: The servers.
            table: The table.
            batch_size: Items of a batch.
            takes_fewer: The arguments that would give a batch of fewer items; empty if none would.
        """
        self._directory, self._table = directory, table
        self._batch_size, self._takes_fewer = batch_size, takes_fewer
        self._is_told, self._ask_again_s = False, -math.inf

    def ask(self) -> list[TableDescription]:
        """Return the descriptions of the table by those servers that answer within half a second."""
        with ThreadPoolExecutor(len(self._addresses)) as threads:
            return [found for found in threads.map(self._describe, self._addresses) if found is not None]

    def why(self, found: Sequence[TableDescription]) -> str:
        """Return the likely cause, given what the servers have."""
        if not found:
            return f"no replay server answers at {' or '.join(self._addresses)}"
        limiter = (self._table if self._directory.is_sharded else found[0].config).rate_limiter
        items, inserts = sum(part.items for part in found), sum(part.inserts for part in found)
        cause = (
            f"it has {items} items after {inserts} inserts and {sum(part.samples for part in found)} samples, with "
            f"min_size {limiter.min_size} and samples_per_insert {limiter.samples_per_insert:g}"
        )
        if self._takes_fewer and 0 < items < self._batch_size and inserts >= limiter.min_size:
            cause += f"; they are fewer than a batch of {self._batch_size}: {self._takes_fewer} takes them"
        return cause

    def is_due(self, began_s: float) -> bool:
        """True if a wait that began at this time of the monotonic clock is to be explained."""
        return not self._is_told and time.monotonic() >= max(began_s + _LATE_S, self._ask_again_s)

    def tell(self) -> None:
        """Log why no batch comes. While no server answers, the lines of the sample stream say so."""
        self._ask_again_s = time.monotonic() + _LATE_S
        if not (found := self.ask()):
            return
        self._is_told = True
        _log.warning(
            "no batch yet, waiting",
            table=self._table.name,
            reason=f"{self.why(found)}; a writer sends its steps with each full chunk, or by `flush`",
        )

    @property
    def _addresses(self) -> tuple[str, ...]:
        return tuple(self._directory.current.values()) or self._directory.addresses

    def _describe(self, address: str) -> TableDescription | None:
        with suppress(TidemillError), ReplayClient(address, deadline_s=_ASK_S) as client:
            return client.describe_table(self._table.name)
        return None
