"""Asks the replay services of a run about their tables."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidemill.errors import TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription

_DEADLINE_S = 1.0


class Tables:
    """The replay services of a run, one shard after the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Prepare; nothing is contacted yet. What a DNS name stands for is not asked: the name tells no shard apart."""
        own = (address for address in addresses if not address.startswith("dns:"))
        self._clients = [ReplayClient(address, deadline_s=_DEADLINE_S) for address in own]

    def describe(self) -> tuple[TableDescription, ...]:
        """Return the tables of the services that answer, within a second for each."""
        found: list[TableDescription] = []
        for client in self._clients:
            with contextlib.suppress(TidemillError):
                found += client.list_tables()
        return tuple(found)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()
