"""The front door of sampling for a training loop: decoded batches of one table, or of several in fixed fractions."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.arrays import Keys
from tidemill.closing import Closing
from tidemill.errors import FailedPrecondition, InvalidArgument, Unavailable
from tidemill.replay.argument_types import check_at_least_1, check_integer, check_number, check_type
from tidemill.replay.batch import SampledBatch
from tidemill.replay.named_table import Servers, read_servers
from tidemill.replay.sampling.corrupt_items import CorruptItemFilter
from tidemill.replay.sampling.late_batches import LateBatches
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.mixture import TablePart, Tables, casts, read_parts
from tidemill.replay.sampling.priorities import PriorityMessages, PrioritySender
from tidemill.replay.sampling.replay_batch import Join, ReplayBatch
from tidemill.replay.sampling.sample_decoder import SampleDecoder, Transform
from tidemill.replay.sampling.sample_stream import SampleStream, check_seed, seed_of
from tidemill.replay.sampling.schedule import Schedule
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.sampling.source import EndOfBatches, Keep, OpenedSource, SampleShape, SampleSource
from tidemill.replay.sampling.table_feed import FedBatch, TableFeed
from tidemill.replay.shards.directory import ShardDirectory, directory_of
from tidemill.replay.table_config import TableConfig
from tidemill.rpc.channel import MAX_MESSAGE_BYTES, Backoff
from tidemill.rpc.fork import OwnerProcess, Reopened

_POLL_S = 0.2  # how soon a waiting thread notices that it shall stop
_SMALLER_S = 1.0
"""Longest wait for a smaller batch that was asked for, in seconds."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a dataset decodes samples.

    Attributes:
        threads: Threads that decode ahead of use. 0 decodes in the thread that takes a batch. Two or more hand batches
            out in no fixed order. With epochs at most 1.
        ready: With threads, decoded samples of each table that are held ready, at least 1.
        encoded: Column that is not decoded for `transform`, which takes the rows it needs from `ItemRows.encoded`. Only
            without `keep`.
        history: Steps in front of each item that were not acted on for its sake, see `ReplayBatch.first_versions`.
    """

    threads: int = 0
    ready: int = 2
    encoded: str = ""
    history: int = 0

    def __post_init__(self) -> None:
        check_integer("decoding.threads", self.threads)
        if self.threads < 0:
            raise InvalidArgument(f"decoding.threads is {self.threads}, must be at least 0")
        check_at_least_1("decoding.ready", self.ready)


class ReplayDataset(Reopened, Closing, Iterator[ReplayBatch], AsyncIterator[ReplayBatch]):
    """Iterates over decoded batches, received ahead of their use: `for`, `next`, and in asyncio `async for`, `anext`.

    With several tables each batch has fixed fractions of them, as for learning from demonstrations and from experience
    of one's own. Use it as a context manager, or call `close`. Batches may be taken by several threads. Pickled, as for
    a process that is started with `spawn`, it is opened again where it arrives, with the same arguments.

    Example:
        The table is the one that the example of `ReplayWriter` fills.

        >>> import tidemill
        >>> with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        ...     table = replay.describe_table("pairs").config
        >>> with tidemill.ReplayDataset("127.0.0.1:7401", table, batch_size=8, timeout_s=10.0) as dataset:
        ...     batch = next(dataset)
        ...     dataset.update_priorities(batch, [1.0] * 8)
        >>> batch["observation"].shape  # 8 items of 2 steps
        (8, 2, 2)
    """

    def __init__(  # noqa: PLR0913, PLR0915 - each is one decision of the caller, and what they make is put together
        self,
        addresses: Servers,
        tables: Tables,
        batch_size: int,
        *,
        timeout_s: float | None = None,
        beta: float | Callable[[], float] = 1.0,
        transform: Transform | None = None,
        join: Join | None = None,
        decoding: Decoding = Decoding(),
        prefetch: int = 4,
        batches_per_sample: int = 1,
        without_replacement: bool = False,
        keep: Keep | None = None,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        seed: int | None = None,
        epochs: int | None = None,
        allow_smaller: bool = False,
        end_on_timeout: bool = False,
        schedule: Schedule | None = None,
        priorities: PriorityMessages | None = None,
        on_sample: Callable[[SampledBatch], object] | None = None,
        create: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Find the tables, and start connecting in the background.

        Args:
            addresses: `host:port` or `unix:///path` of the replay server, or of each of several; or a `ShardDirectory`,
                which says over how many servers the tables are divided and stays the caller's to close.
            tables: The table or its name; or several, with the fraction of a batch that comes from each. Fractions add
                up to 1. A `TableAt` names a table on other servers. Columns are those of the first table; the others
                must have them too, and wider types are cast.
            batch_size: Items of a batch.
            timeout_s: Longest wait for a batch; None waits until `close` or `stop`, and after 10 s logs once for what.
            beta: Exponent of the importance weights (Schaul et al., 2016, section 3.4), or a function that returns it.
                0 makes them all 1.
            transform: Makes what batches have as `columns`, such as tensors, from decoded rows; it runs where those are
                decoded. None gives arrays [B, L, ...] of each column. With several tables it is called for the items of
                each, and takes `join`.
            join: With several tables, makes the columns of a batch of those that `transform` returned for the items of
                each table; called in the thread that takes the batch. None joins arrays.
            decoding: Threads that decode ahead of use, and what they decode.
            prefetch: Samples of each table that may be under way or waiting. The first are drawn as soon as the table
                has `min_size` items. 0 draws one when a batch is taken, without decoding threads or a schedule: where
                several processes share a queue, none holds what another needs. A call that timed out still waits for
                its batch, which may come, and be held, before the next call.
            batches_per_sample: Batches that come as one: small ones are then several times cheaper, and wait longer, so
                that their priorities are older. Tables with `max_times_sampled` give them one by one all the same.
            without_replacement: Whether no item may come twice in a sample.
            keep: Where decoded steps are kept, so that each crosses the wire once, such as `HostRows(mib=512)`. None
                keeps none.
            item_counts: Whether batches have `ages`, `times_sampled` and `priorities`.
            max_message_bytes: Bytes of the largest message taken, at least 65,536; larger batches come in parts.
            seed: Seed of the draws, 0 to 2**64 - 1. Two datasets with the same seed and arguments then draw the same
                items from the same table, as long as nothing changes it, new priorities included. None: draws differ.
                It takes a single server.
            epochs: Draw without replacement over an epoch, every item once in random order, and end after so many
                epochs; 0 repeats without end. None draws each batch from all items. It takes a single server, and a
                single table with the uniform sampler.
            allow_smaller: Whether a batch may have fewer items: the last one of an epoch, which is skipped otherwise,
                and, where items run out (`max_times_sampled`, `without_replacement`), what is there when no whole batch
                came within `timeout_s`. It takes a single table and server.
            end_on_timeout: Whether the iteration ends where no batch comes within `timeout_s`, such as that of a queue
                whose writers have ended, instead of raising `Unavailable`.
            schedule: Draws each sample by a separate seed at a step count, for runs in lock-step. It takes a single
                server and table, and no threads.
            priorities: How those that `priorities.send` takes are put into messages; None for one message each.
            on_sample: Called with each sample of the first table as it arrives, in their order, in whichever thread
                receives it.
            create: Whether the tables may be created, which takes their configurations. They need not be there then,
                and neither does the server. A table that a server has lost since it was found is always created again.
            stop: Ends every wait when set.

        Raises:
            InvalidArgument: An argument is out of range, the mirror is too small for a batch, tables differ in
                columns or longest item, or a name is to be created.
            TypeError: An argument is of another type.
            NotFound: No server has the table, and `create` is False.
            Unavailable: A server did not answer within 10 s, no other has the table, and `create` is False.
        """
        check_number("timeout_s", timeout_s, or_none=True)
        check_integer("prefetch", prefetch)
        if prefetch < (least := int(decoding.threads > 0 or schedule is not None)):
            raise InvalidArgument(f"prefetch is {prefetch}, must be at least {least}")
        check_at_least_1("batches_per_sample", batches_per_sample)
        _check_beta(beta)
        _check_threads(decoding.threads, epochs, schedule)
        check_seed(seed)
        self._owner = OwnerProcess("ReplayDataset")
        servers = read_servers(addresses)
        check_integer("batch_size", batch_size)
        self._parts = read_parts(servers, tables, batch_size, create=create)
        self._timeout_s, self._allow_smaller, self._end_on_timeout = timeout_s, allow_smaller, end_on_timeout
        self._asked_s = -math.inf  # when the wait began in which a smaller batch was asked for last
        self._join = join
        _check_single(self._parts, epochs, transform, join, schedule, allow_smaller=allow_smaller)
        _check_encoded(decoding.encoded, self._parts[0].table, transform)
        # a sample counts as handed out whole: of items that may be used up it is one batch
        alone = any(part.table.max_times_sampled for part in self._parts)
        self._runs_out = alone or without_replacement or epochs is not None
        remedies = {"allow_smaller=True": not allow_smaller, "a timeout_s": timeout_s is None and epochs is None}
        remedy = " with ".join(argument for argument, is_missing in remedies.items() if is_missing)
        splits = 1 if alone else batches_per_sample
        ahead = prefetch * batches_per_sample if alone else prefetch
        self._stop, self._closed = stop or threading.Event(), threading.Event()
        stream = partial(
            SampleStream,
            without_replacement=without_replacement,
            item_counts=item_counts,
            max_message_bytes=max_message_bytes,
            allow_smaller=allow_smaller,
            by_epoch=epochs is not None,
            schedule=schedule,
            lends=decoding.threads > 0 or len(self._parts) > 1,  # or a batch is handed out as it is taken
        )
        decoder = partial(
            SampleDecoder,
            exponent=beta if callable(beta) else partial(float, beta),
            transform=transform,
            encoded=decoding.encoded,
            history=decoding.history,
            keeps_rest=allow_smaller,
            whole_samples=schedule is not None,
        )
        feed = partial(
            TableFeed,
            threads=decoding.threads,
            prefetch_samples=decoding.ready,
            epochs=epochs or 0,
            is_over=self._is_over,
        )
        hold = ahead + decoding.threads + 2  # under way, being read, and one of another thread
        messages = priorities or PriorityMessages()
        tokens = [0 if part.must_exist else messages.fencing_token for part in self._parts]
        self._late: list[LateBatches] = []
        self._waits_for = 0  # place of the table that had no batch last
        directories: list[ShardDirectory] = []
        self._opened: list[OpenedSource] = []
        self._feeds: list[TableFeed] = []
        with ExitStack() as stack:
            first = self._parts[0].table
            for i, part in enumerate(self._parts):
                seeds = seed_of(seed, i) if seed is not None else None
                size, table = part.items, part.table
                directory = stack.enter_context(directory_of(part.servers))
                connect = partial(
                    stream,
                    directory,
                    table,
                    size * splits,
                    seed=seeds,
                    must_exist=part.must_exist,
                    fencing_token=tokens[i],
                )
                shards = directory.count if directory.is_sharded else 0
                shape = SampleShape(size * splits, ahead, hold, shards, directory.most_servers)
                opened = _open(keep, table, shape, connect, stack)
                corrupt = CorruptItemFilter(opened.source.delete_items, time.monotonic)
                made = decoder(
                    table,
                    size,
                    splits,
                    corrupt,
                    number=i,
                    mirror=opened.mirror,
                    casts=casts(table.signature, first.signature),
                )
                self._opened.append(opened)
                directories.append(directory)
                is_single = len(self._parts) == 1 and not directory.is_sharded
                shrinks = self._runs_out and is_single
                self._late.append(LateBatches(directory, table, size, takes_fewer=remedy if shrinks else ""))
                told = on_sample if i == 0 and on_sample is not None else _ignore
                self._feeds.append(stack.enter_context(closing(feed(opened, made, on_sample=told))))
            self.priorities = PrioritySender(
                [
                    partial(_send, opened, not directory.is_sharded, token)
                    for opened, directory, token in zip(self._opened, directories, tokens, strict=True)
                ],
                messages,
                self._stop,
            )
            """Sends new priorities in the background, where `update_priorities` waits."""
            self._resources = stack.pop_all()

    def __next__(self) -> ReplayBatch:
        """Return the next batch.

        Raises:
            StopIteration: It was closed, `stop` was set, all `epochs` are over, or `end_on_timeout` and no batch came.
            Unavailable: No batch came within `timeout_s`; the message says why. Another attempt may succeed.
            TidemillError: A server refused for good, such as one that has the table with another configuration.
            FailedPrecondition: This process was forked from the one that made the dataset.
        """
        began_s = time.monotonic()
        while (batch := self._batch_within(_POLL_S, began_s)) is None:
            if self._is_late(began_s):
                self._late[self._waits_for].tell()
        return batch

    async def __anext__(self) -> ReplayBatch:
        """Return the next batch as `__next__` does, without blocking the event loop, except to decode the batch.

        A call that is cancelled has taken none. After the last one it raises StopAsyncIteration.
        """
        began_s, pause = time.monotonic(), Backoff(first_s=0.001, limit_s=0.05)
        await asyncio.sleep(0)  # or a loop whose batches are always ready would let no other task run
        try:
            while (batch := self._taken_within(0.0, began_s)) is None:
                if self._is_late(began_s):
                    await asyncio.to_thread(self._late[self._waits_for].tell)
                await asyncio.sleep(pause.next_s())
        except _Overdue as overdue:
            error = await asyncio.to_thread(self._overdue, overdue.table)
            raise (StopAsyncIteration() if isinstance(error, StopIteration) else error) from None
        except StopIteration:
            raise StopAsyncIteration from None
        return batch

    def take(self, timeout_s: float) -> ReplayBatch | None:
        """Return the next batch, or None if there is none within `timeout_s` seconds; raises as `__next__`."""
        began_s = time.monotonic()
        batch = self._batch_within(min(timeout_s, _POLL_S), began_s)
        while batch is None and (left_s := began_s + timeout_s - time.monotonic()) > 0:
            batch = self._batch_within(min(left_s, _POLL_S), began_s)
        return batch

    def update_priorities(self, batch: ReplayBatch, priorities: ArrayLike, timeout_s: float | None = None) -> None:
        """Set new priorities of a batch's items; one that has left its table is skipped, never its successor changed.

        With one server it waits while that is away, as during a restart. With several it never waits: what a server
        cannot take is dropped.

        Args:
            batch: A batch of this dataset.
            priorities: One for each item, at most 1e39 and at least `TableConfig.least_priority`, float64 [B].
            timeout_s: Longest wait; None takes that of the dataset.

        Raises:
            InvalidArgument: There are not B priorities, or one is out of range; none of its table was set.
            Unavailable: The server did not answer in time, or `stop` was set. Another attempt may succeed.
            NotFound: The server did not have the table in time.
            FailedPrecondition: The dataset is closed.
        """
        self._owner.check()
        if self._closed.is_set():
            raise FailedPrecondition("the dataset is closed: set priorities before")
        check_type("batch", batch, ReplayBatch, "a ReplayBatch, as `next` returned it")
        check_number("timeout_s", timeout_s, or_none=True)
        values = np.asarray(priorities, np.float64).reshape(-1)
        if len(values) != len(batch):
            raise InvalidArgument(f"priorities has {len(values)} entries, must have {len(batch)} like the batch")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for table in range(len(self._parts)):
            here = batch.tables == table
            if here.any():
                left_s = None if timeout_s is None else until_s - time.monotonic()
                self.priorities.store(batch.keys[here], values[here], table, left_s)

    def close(self) -> None:
        """End every call and thread; waiting threads get StopIteration. May be called twice.

        It takes at most 2 s for each connection. Before that a server that does not answer gets up to 6 s to take the
        priorities that wait; several servers get 3 s to answer for priorities, those of a queue half a second.
        """
        if self._owner.is_here:
            self.priorities.close()
            self._closed.set()
            self._resources.close()

    def shards(self, table: int | None = None) -> tuple[ShardReport, ...]:
        """Return the status of each server, in order of name; empty for a single server.

        Args:
            table: Number of the table whose servers they are, 0 for the first; None for those of all tables in turn.
        """
        opened = self._opened if table is None else [self._opened[table]]
        return tuple(report for each in opened for report in each.source.shards())

    @property
    def reconnects(self) -> int:
        """How often a sample stream was lost and opened again."""
        return sum(opened.source.reconnects for opened in self._opened)

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered: a server was unavailable or behind, or the dataset was closed."""
        return self.priorities.dropped + sum(opened.source.priorities_dropped for opened in self._opened)

    @property
    def unknown_keys(self) -> int:
        """Priorities delivered to one of several servers after their item had left it."""
        return sum(opened.source.unknown_keys for opened in self._opened)

    def lost_priorities(self, table: int) -> tuple[int, int]:
        """Return the number of priorities that were lost on the way to the servers of one table.

        Args:
            table: Number of the table, 0 for the first.

        Returns:
            Those that its servers did not take, and those whose item had left one of several servers.
        """
        source = self._opened[table].source
        return source.priorities_dropped, source.unknown_keys

    @property
    def corrupt_items(self) -> int:
        """Items that could not be decoded: replaced by others of their sample, and removed from the table."""
        return sum(feed.corrupt_items for feed in self._feeds)

    @property
    def overruns(self) -> int:
        """Times that batches were dropped because the mirror's rows were written over while they were read."""
        return sum(feed.overruns for feed in self._feeds)

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._stop.is_set()

    def _batch_within(self, wait_s: float, began_s: float) -> ReplayBatch | None:
        """Return the next batch, or None if a table has none within `wait_s` seconds; raises as `__next__`.

        It is also None if the call of a part has ended: its items come again, and the other parts wait for them.
        """
        try:
            return self._taken_within(wait_s, began_s)
        except _Overdue as overdue:
            raise self._overdue(overdue.table) from None

    def _taken_within(self, wait_s: float, began_s: float) -> ReplayBatch | None:
        """Do as `_batch_within` does, but ask no server; raises `_Overdue` where no batch came within `timeout_s`."""
        self._owner.check()
        parts: list[FedBatch] = []
        try:
            for table in range(len(self._parts)):
                left_s = wait_s if self._timeout_s is None else began_s + self._timeout_s - time.monotonic()
                if self._allow_smaller and self._timeout_s is not None and left_s <= 0:
                    if self._asked_s != began_s:
                        self._asked_s = began_s
                        self._opened[table].source.ask_smaller()
                    left_s += _SMALLER_S
                part = self._feeds[table].take(min(wait_s, max(left_s, 0.0)))
                if part is None and left_s <= 0 and self._timeout_s is not None:
                    raise _Overdue(table)
                if part is None:
                    self._waits_for = table
                    return None
                parts.append(part)
            whole, parts = parts, []
        finally:
            for feed, part in zip(self._feeds, parts, strict=False):
                feed.put_back(part)  # for the next attempt
        batches = [part.batch for part in whole]
        batch = batches[0] if len(batches) == 1 else ReplayBatch.joined(batches, self._join)
        if not any(part.is_void for part in whole) and all([part.settle() for part in whole]):
            return batch
        # the call of a part has ended since it was taken
        for feed, part in zip(self._feeds, whole, strict=True):
            feed.put_back(part)
        return None

    def _is_late(self, began_s: float) -> bool:
        return self._timeout_s is None and self._late[self._waits_for].is_due(began_s)

    def _overdue(self, table: int) -> Unavailable | EndOfBatches:
        """The exception for a batch that does not come in time: its likely cause, or the end of the batches."""
        found = self._late[table].ask()
        late = f"no batch of table {self._parts[table].table.name!r} within {self._timeout_s:g} s"
        if found and self._end_on_timeout:
            return EndOfBatches(late)
        return Unavailable(f"{late}: {self._late[table].why(found)}")


class _Overdue(Exception):
    """No batch of a table, by its place, came within `timeout_s`."""

    def __init__(self, table: int) -> None:
        super().__init__(table)
        self.table = table


def _check_beta(beta: float | Callable[[], float]) -> None:
    if callable(beta):
        return
    check_number("beta", beta)
    if not beta >= 0:
        raise InvalidArgument(f"beta is {beta}, must be at least 0")


def _check_threads(threads: int, epochs: int | None, schedule: Schedule | None) -> None:
    if epochs is not None:
        check_integer("epochs", epochs)
        if epochs < 0:
            raise InvalidArgument(f"epochs is {epochs}, must be at least 0, which has no end, or None")
    if schedule is not None and threads:
        raise InvalidArgument(f"decoding.threads is {threads}, must be 0 with a schedule")
    if epochs is not None and threads > 1:
        raise InvalidArgument(f"decoding.threads is {threads}, must be 0 or 1 with epochs")


def _check_single(
    parts: Sequence[TablePart],
    epochs: int | None,
    transform: Transform | None,
    join: Join | None,
    schedule: Schedule | None,
    *,
    allow_smaller: bool,
) -> None:
    if len(parts) == 1:
        return
    if epochs is not None or allow_smaller:
        raise InvalidArgument(f"epochs and allow_smaller need a single table, not {len(parts)}")
    if schedule is not None:
        raise InvalidArgument(f"schedule needs a single table, not {len(parts)}")
    if transform is not None and join is None:
        raise InvalidArgument(
            f"transform is given with {len(parts)} tables, needs `join`, which makes one batch of what it returns"
        )


def _check_encoded(column: str, table: TableConfig, transform: Transform | None) -> None:
    if not column:
        return
    if column not in (names := [spec.name for spec in table.signature]):
        raise InvalidArgument(f"decoding.encoded is {column!r}, must be a column of table {table.name!r}: {names}")
    if transform is None:
        raise InvalidArgument(f"decoding.encoded is {column!r}, needs `transform`, which decodes the column")


def _ignore(_: SampledBatch) -> None:
    """Take no notice of a sample."""


def _send(
    opened: OpenedSource,
    is_single: bool,
    fencing_token: int,
    keys: Keys,
    priorities: NDArray[np.float64],
    /,
    *,
    deadline_s: float | None = None,
) -> None:
    """Send priorities to a table by the keys of a batch, which those of another table may have made wider."""
    own = keys[:, 0] if is_single and keys.ndim > 1 else keys
    opened.source.update_priorities(own, priorities, fencing_token, deadline_s=deadline_s)


def _open(
    keep: Keep | None,
    table: TableConfig,
    shape: SampleShape,
    connect: Callable[..., SampleSource],
    stack: ExitStack,
) -> OpenedSource:
    """Start to sample a table, until `stack` ends it."""

    def connected(mirror: TableMirror | None, in_flight: int) -> SampleSource:
        return stack.enter_context(closing(connect(mirror=mirror, max_in_flight_batches=in_flight)))

    if keep is None:
        return OpenedSource(connected(None, shape.in_flight))
    return keep.open(table, shape, connected, stack)
