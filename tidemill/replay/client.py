"""The replay service's unary calls, typed."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.replay.table_config import TableConfig, TableDescription


class ReplayClient:
    """Tables of one replay service: create, describe, reset, set priorities, delete.

    Every method raises `Unavailable` when the service cannot be reached or does not answer within `deadline_s`,
    and otherwise the `TidemillError` that the service answered. Safe to call from several threads.
    """

    def __init__(self, address: str, *, deadline_s: float = 10.0) -> None:
        """Open a channel; it connects on first use."""
        raise NotImplementedError

    def create_table(self, config: TableConfig) -> bool:
        """Create a table; return False when an equal one existed. AlreadyExists: the name has another configuration."""
        raise NotImplementedError

    def list_tables(self) -> tuple[TableDescription, ...]:
        """Return every table in order of name."""
        raise NotImplementedError

    def describe_table(self, name: str) -> TableDescription:
        """Return one table. NotFound: no such table."""
        raise NotImplementedError

    def reset_table(self, name: str) -> int:
        """Remove every item; return how many there were. NotFound: no such table."""
        raise NotImplementedError

    def update_priorities(self, table: str, keys: NDArray[np.uint64], priorities: ArrayLike) -> int:
        """Set priorities; return how many keys were in the table. InvalidArgument: one is negative or not finite."""
        raise NotImplementedError

    def delete_items(self, table: str, keys: Sequence[int] | NDArray[np.uint64]) -> int:
        """Remove items; return how many keys were in the table."""
        raise NotImplementedError

    def checkpoint(self) -> int:
        """Write priorities and counters to disk; return the snapshot's number. An in-memory service refuses."""
        raise NotImplementedError

    def wait_for_ready(self, timeout_s: float) -> None:
        """Wait until the service accepts connections. Unavailable: it did not within `timeout_s` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the channel. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
