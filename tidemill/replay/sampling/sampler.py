"""The front door of sampling: batches of one table, from one replay server or from several, and priorities back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
from numpy.typing import NDArray

from tidemill.closing import Closing
from tidemill.replay.argument_types import check_at_least_1, check_range
from tidemill.replay.batch import SampledBatch
from tidemill.replay.limits import MAX_BATCH_SIZE
from tidemill.replay.named_table import Servers, read_servers, read_table
from tidemill.replay.sampling.late_batches import LateBatches
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.sampling.source import EndOfBatches
from tidemill.replay.shards.directory import directory_of
from tidemill.replay.table_config import TableConfig
from tidemill.rpc.channel import MAX_MESSAGE_BYTES
from tidemill.rpc.fork import OwnerProcess, Reopened

_POLL_S = 0.2
"""How soon a waiting thread notices that it shall stop."""


class ReplaySampler(Reopened, Closing, Iterator[SampledBatch]):
    """Iterates over sampled batches of one table, received ahead of their use.

    With one address the server's own rate limiter holds samples back. With several, or a DNS name, the table is spread
    over shards that are sampled as one, and the ratio is held over all of them (ADR 0020). Keys belong to the sampler
    that gave them: hand them back to its `update_priorities`. Use it as a context manager, or call `close`.

    Batches may be taken by several threads, each batch goes to one of them. In a process forked from the one that made
    the sampler every method raises `FailedPrecondition`, but `close`, which does nothing; pickled, it is opened again.

    Example:
        The table is the one that the example of `ReplayWriter` fills.

        >>> import tidemill
        >>> from tidemill.replay.codec import decode
        >>> with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        ...     table = replay.describe_table("pairs").config
        >>> with tidemill.ReplaySampler(["127.0.0.1:7401"], table, batch_size=8) as sampler:
        ...     batch = next(sampler)
        ...     sampler.update_priorities(batch.keys, [1.0] * 8)
        >>> rows = decode(table.signature, batch, table.max_item_steps)
        >>> rows.columns["observation"][rows.index].shape  # 8 items of 2 steps
        (8, 2, 2)
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        addresses: Servers,
        table: TableConfig | str,
        batch_size: int,
        *,
        max_in_flight_batches: int = 4,
        without_replacement: bool = False,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        seed: int | None = None,
        allow_smaller: bool = False,
        by_epoch: bool = False,
        create: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Find the table, and start connecting in the background.

        Args:
            addresses: `host:port` or `unix:///path` of each replay server, a single `dns:///name:port`, or a
                `ShardDirectory`, which says over how many servers the table is divided and stays the caller's to close.
            table: The whole table, or its name.
            batch_size: Items in each batch, 1 .. 65536.
            max_in_flight_batches: Batches that may be under way or waiting to be taken, at least 1.
            without_replacement: Whether no item may come twice in a batch.
            item_counts: Whether batches say how old each item is, how often it was sampled and which priority it has.
            max_message_bytes: Bytes of the largest message taken, at least 65,536; larger batches come in parts.
            seed: Seed of the draws, 0 to 2**64 - 1: they then depend on it and the table alone. None: they differ.
            allow_smaller: Whether `ask_smaller` may be called.
            by_epoch: Whether items are drawn without replacement over an epoch, see `SampledBatch.epoch`: each once, in
                random order, then all again. The last batch of an epoch may be smaller.
            create: Whether the table may be created, which takes its configuration. It need not be there then, and
                neither does the server. A table that a server has lost since it was found is created again.
            stop: Ends every wait when set.

        Raises:
            InvalidArgument: `addresses` is empty, has one twice, or mixes a DNS name with others, an argument is out of
                range, a name is to be created, the table cannot be drawn by epochs, or there are several servers and
                `seed`, `allow_smaller` or `by_epoch` is given.
            TypeError: An argument is of another type.
            NotFound: No server has the table, and `create` is False.
            Unavailable: A server did not answer within 10 s, no other has the table, and `create` is False.
        """
        self._owner = OwnerProcess("ReplaySampler")
        servers = read_servers(addresses)
        check_range("batch_size", batch_size, 1, MAX_BATCH_SIZE)
        check_at_least_1("max_in_flight_batches", max_in_flight_batches)
        table = read_table(servers, table, create=create)
        self._stop, self._closed = stop or threading.Event(), threading.Event()
        with ExitStack() as stack:
            directory = stack.enter_context(directory_of(servers))
            self._late = LateBatches(directory, table, batch_size)
            self._stream = SampleStream(
                directory,
                table,
                batch_size,
                max_in_flight_batches=max_in_flight_batches,
                without_replacement=without_replacement,
                item_counts=item_counts,
                max_message_bytes=max_message_bytes,
                seed=seed,
                allow_smaller=allow_smaller,
                by_epoch=by_epoch,
            )
            stack.enter_context(closing(self._stream))
            self._resources = stack.pop_all()

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if none comes within `timeout_s` seconds, it was closed, or `stop` was set.

        Raises:
            TidemillError: A server refused for good, such as one that has the table with another configuration.
        """
        self._owner.check()
        deadline_s = time.monotonic() + timeout_s
        while not self._is_over():
            left_s = deadline_s - time.monotonic()
            batch = self._stream.take(min(left_s, _POLL_S))
            if batch is not None or left_s <= _POLL_S:
                return batch
        return None

    def __next__(self) -> SampledBatch:
        """Return the next batch, waiting as long as it takes; after 10 s it logs once for what.

        Raises:
            StopIteration: The sampler was closed, or `stop` was set.
            TidemillError: As `take` raises.
        """
        began_s = time.monotonic()
        while not self._is_over():
            batch = self.take(_POLL_S)
            if batch is not None:
                return batch
            if self._late.is_due(began_s):
                self._late.tell()
        raise EndOfBatches("the sampler is closed, or its `stop` is set")

    def ask_smaller(self) -> None:
        """Ask that the next batch have what the table can give now, where a whole one does not come.

        It takes `allow_smaller`; with nothing in the table it does nothing.
        """
        self._owner.check()
        self._stream.ask_smaller()

    def update_priorities(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Set new priorities of sampled items; one that has left the table is skipped, never its successor changed.

        With one server this waits for the answer, at most `deadline_s`; with several it never waits, and what a shard
        cannot take is counted in `priorities_dropped`.

        Args:
            keys: Keys as they came with a batch of this sampler, uint64 [N], or [N, 2] from several shards.
            priorities: At most 1e39 and at least `TableConfig.least_priority`, float64 [N].
            fencing_token: Of the learner that writes, see `ParamsClient.acquire_fencing_token`; 0 for none.
            deadline_s: Longest wait for the answer of the only server; None for 10 s.

        Raises:
            InvalidArgument: A priority is out of range; none was set.
            FailedPrecondition: The table has seen a newer fencing token: these, or with several servers earlier ones,
                were not set.
            Unavailable: The only server cannot be reached.
            NotFound: The only server has no such table.
        """
        self._owner.check()
        self._stream.update_priorities(keys, priorities, fencing_token, deadline_s=deadline_s)

    def delete_items(self, keys: NDArray[np.uint64]) -> None:
        """Remove sampled items from the table; those on a shard that is unavailable stay.

        Args:
            keys: Keys as they came with a batch of this sampler, uint64 [N], or [N, 2] from several shards.

        Raises:
            Unavailable: A server did not answer.
            NotFound: A server has no such table.
        """
        self._owner.check()
        self._stream.delete_items(keys)

    def shards(self) -> tuple[ShardReport, ...]:
        """Return the status of each shard, in order of name; empty for a single server."""
        return self._stream.shards()

    @property
    def reconnects(self) -> int:
        """How often a sample stream was lost and opened again, those of all shards together."""
        return self._stream.reconnects

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered because their shard was unavailable or behind."""
        return self._stream.priorities_dropped

    @property
    def unknown_keys(self) -> int:
        """Priorities delivered to a shard after their item had left it."""
        return self._stream.unknown_keys

    def close(self) -> None:
        """End every call and thread within a bounded time; waiting threads get StopIteration. May be called twice."""
        if self._owner.is_here:
            self._closed.set()
            self._resources.close()

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._stop.is_set()
