"""The sampling side of the replay client: a stream of batches with bounded prefetch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tidemill.replay.batch import SampledBatch
from tidemill.replay.table_config import TableConfig


class SampleStream(Iterator[SampledBatch]):
    """Batches of one table, received ahead of their use.

    At most `credit` batches are underway or waiting at any time. A background thread holds the connection; when it
    breaks it reconnects with backoff, creates the table again if the server lost it, and goes on: batches that were
    underway are lost and count as sampled. Any number of threads may iterate; each batch goes to one of them.

    Errors that a retry cannot cure (the table exists with another configuration) are raised by `next`.
    """

    def __init__(
        self,
        address: str,
        table: TableConfig,
        batch_size: int,
        *,
        credit: int = 4,
        without_replacement: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Start connecting in the background; creates the table if it does not exist.

        Args:
            address: Address of the replay service.
            table: The table to sample; created, or confirmed, on every connection.
            batch_size: Items in each batch, 1 .. 65536.
            credit: Batches that may be underway or waiting, at least 1.
            without_replacement: Whether no item may come twice in a batch.
            stop: Ends the iteration when set.
        """
        raise NotImplementedError

    def __next__(self) -> SampledBatch:
        """Return the next batch, waiting as long as it takes.

        Raises:
            StopIteration: the stream was closed, or `stop` was set.
            TidemillError: the server refused for good.
        """
        raise NotImplementedError

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed."""
        raise NotImplementedError

    def close(self) -> None:
        """End the call and the thread; waiting threads get StopIteration. May be called twice."""
        raise NotImplementedError

    @property
    def waited_s(self) -> float:
        """Seconds callers have waited for batches so far, all threads together."""
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether the present connection has delivered or may deliver batches."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
