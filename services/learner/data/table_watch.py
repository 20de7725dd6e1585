"""A poll of the replay servers' tables for the time in which no batch arrives, because batches usually report them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.errors import TidemillError
from tidemill.replay.batch import StoredSteps
from tidemill.replay.client import ReplayClient
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.services.learner.status.counters import Counters

_EVERY_S = 1.0
_DEADLINE_S = 2.0
_JOIN_S = 5.0


class TableWatch:
    """A thread that counts the steps and items of a table for as long as training waits for its first batches.

    A table may not be sampled before it holds `table.min_size` items; decisions count from the first one.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        table: str,
        counters: Counters,
        is_waiting: Callable[[], bool],
        found_items: Callable[[int], None],
    ) -> None:
        """Start to watch.

        Args:
            directory: The servers.
            table: Name of the table.
            counters: Learn how many steps are stored.
            is_waiting: Whether training waits for a batch; nobody is asked otherwise.
            found_items: Called with the items of all servers that answer.
        """
        self._directory, self._table, self._counters = directory, table, counters
        self._is_waiting, self._found_items = is_waiting, found_items
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="table-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._thread.join(_JOIN_S)

    def _watch(self) -> None:
        while not self._closed.wait(_EVERY_S):
            if self._is_waiting():
                self._ask()

    def _ask(self) -> None:
        items, answers = 0, 0
        for shard, address in self._directory.current.items():
            try:
                with ReplayClient(address, deadline_s=_DEADLINE_S) as client:
                    table = client.describe_table(self._table)
            except TidemillError:
                continue
            if not self._is_waiting():  # a batch that has come since knows better
                return
            self._counters.observe_waiting(StoredSteps(table.store_id, table.env_steps, table.count_id), shard)
            items, answers = items + table.items, answers + 1
        if answers:
            self._found_items(items)
