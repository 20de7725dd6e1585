"""The front door of sampling for a training loop: decoded batches of one table, or of several in fixed fractions."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, TidemillError, Unavailable
from tidemill.replay.argument_types import check_integer, check_number, check_type
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import CorruptBlocks, decode
from tidemill.replay.limits import least_slots
from tidemill.replay.named_table import addresses_of, read_table
from tidemill.replay.sampling.batch import SampledBatch
from tidemill.replay.sampling.columns import ItemColumns, Per, values_of
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_stream import seed_of
from tidemill.replay.sampling.sampler import EndOfBatches, ReplaySampler, check_seed
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.steps import LENGTH, SEPARATOR, ragged_columns
from tidemill.rpc.channel import DEADLINE_S, MAX_MESSAGE_BYTES, Backoff
from tidemill.rpc.fork import OwnerProcess
from tidemill.rpc.reopened import Reopened

Array = NDArray[Any]

_POLL_S = 0.2
_EXPLAIN_S = 0.5
_SMALLER_S = 1.0
"""Longest wait for a smaller batch that was asked for, in seconds."""
_LEAST_S = 0.1  # an attempt to set priorities may take
_MAX_SLOTS = 2**21


class ReplayDataset(Reopened, Iterator[ReplayBatch], AsyncIterator[ReplayBatch]):
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

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        addresses: str | Sequence[str],
        tables: TableConfig | str | Mapping[TableConfig, float] | Mapping[str, float],
        batch_size: int,
        *,
        timeout_s: float | None = None,
        beta: float = 1.0,
        prefetch: int = 4,
        batches_per_sample: int = 1,
        without_replacement: bool = False,
        mirror_mib: int = 0,
        chunk_length: int = 16,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        seed: int | None = None,
        epochs: int | None = None,
        allow_smaller: bool = False,
        end_on_timeout: bool = False,
        create: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Find the tables, and start connecting in the background.

        Args:
            addresses: `host:port` or `unix:///path` of the replay server, or of each of several.
            tables: The table or its name; or several, with the fraction of a batch that comes from each. Fractions add
                up to 1.
            batch_size: Items of a batch.
            timeout_s: Longest wait for a batch; None waits until `close` or `stop`.
            beta: Exponent of the importance weights (Schaul et al., 2016, section 3.4); 0 makes them all 1.
            prefetch: Samples of each table that may be under way or waiting, at least 1.
            batches_per_sample: Batches that come as one: small ones are then several times cheaper, and wait longer, so
                that their priorities are older. Tables with `max_times_sampled` give them one by one all the same.
            without_replacement: Whether no item may come twice in a sample.
            mirror_mib: Memory for steps of each table, uncompressed, in MiB: each step that has room crosses the wire
                and is decoded once, not in every batch, which pays for images. 0: none.
            chunk_length: With a mirror, the greatest `chunk_length` of the writers.
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
            create: Whether the tables may be created, which takes their configurations. They need not be there then,
                and neither does the server. A table that a server has lost since it was found is always created again.
            stop: Ends every wait when set.

        Raises:
            InvalidArgument: An argument is out of range, the mirror is too small for a batch, tables differ in
                signature or longest item, or a name is to be created.
            TypeError: An argument is of another type.
            NotFound: No server has the table, and `create` is False.
            Unavailable: No server answered within 10 s, and `create` is False.
        """
        check_number("timeout_s", timeout_s, or_none=True)
        _check(prefetch, batches_per_sample, beta)
        check_seed(seed)
        if epochs is not None:
            check_integer("epochs", epochs)
            if epochs < 0:
                raise InvalidArgument(f"epochs is {epochs}, must be at least 0, which has no end, or None")
        self._owner = OwnerProcess("ReplayDataset")
        self._addresses = addresses_of(addresses)
        check_integer("batch_size", batch_size)
        instead = "a TableConfig, the name of a table, or a dict with several and their fractions"
        check_type("tables", tables, (TableConfig, str, Mapping), instead)
        fractions: Mapping[Any, float] = tables if isinstance(tables, Mapping) else {tables: 1.0}
        given = {read_table(self._addresses, table, create=create): fraction for table, fraction in fractions.items()}
        self._tables, self._sizes = tuple(given), _split(batch_size, given)
        self._timeout_s, self._beta = timeout_s, beta
        self._epochs, self._allow_smaller, self._end_on_timeout = epochs, allow_smaller, end_on_timeout
        self._asked_s = -math.inf  # when the wait began in which a smaller batch was asked for last
        if (epochs is not None or allow_smaller) and len(self._tables) > 1:
            raise InvalidArgument(
                f"epochs or allow_smaller is given with {len(self._tables)} tables, takes a single one"
            )
        # a sample counts as handed out whole: of items that may be used up it is one batch
        alone = any(table.max_times_sampled for table in self._tables)
        ahead = prefetch * batches_per_sample if alone else prefetch
        sizes = [size * (1 if alone else batches_per_sample) for size in self._sizes]
        self._ready: list[deque[ReplayBatch]] = [deque() for _ in sizes]
        self._stop, self._closed = stop or threading.Event(), threading.Event()
        self._stop_here = threading.Event()  # set when the epochs are over
        self._mirrors = [
            _mirror(table, size, mirror_mib, chunk_length, ahead, len(self._addresses))
            for table, size in zip(self._tables, sizes, strict=True)
        ]
        connect = partial(
            ReplaySampler,
            self._addresses,
            max_in_flight_batches=ahead,
            item_counts=item_counts,
            max_message_bytes=max_message_bytes,
            allow_smaller=allow_smaller,
            by_epoch=epochs is not None,
            create=True,  # those that must be there were found above
            stop=self._stop,
        )
        with ExitStack() as stack:
            self._samplers = [
                stack.enter_context(
                    connect(
                        table,
                        size,
                        mirror=mirror,
                        without_replacement=without_replacement,
                        seed=seed_of(seed, i) if seed is not None else None,
                    )
                )
                for i, (table, size, mirror) in enumerate(zip(self._tables, sizes, self._mirrors, strict=True))
            ]
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
            pass
        return batch

    async def __anext__(self) -> ReplayBatch:
        """Return the next batch as `__next__` does, without holding up the event loop, but for decoding it there.

        A call that is cancelled has taken none. After the last one it raises StopAsyncIteration.
        """
        began_s, pause = time.monotonic(), Backoff(first_s=0.001, limit_s=0.05)
        await asyncio.sleep(0)  # or a loop whose batches are always ready would let no other task run
        try:
            while (batch := self._batch_within(0.0, began_s)) is None:
                await asyncio.sleep(pause.next_s())
        except StopIteration:
            raise StopAsyncIteration from None
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
        for i, sampler in enumerate(self._samplers):
            here = batch.tables == i
            if here.any():
                self._send_priorities(sampler, batch.keys[here], values[here], until_s)

    def _send_priorities(
        self, sampler: ReplaySampler, keys: NDArray[np.uint64], values: NDArray[np.float64], until_s: float
    ) -> None:
        """Set priorities [N] by key, again while the server is away, until a time of the monotonic clock."""
        pause = Backoff(limit_s=1.0)
        while True:
            left_s = until_s - time.monotonic()
            try:
                return sampler.update_priorities(keys, values, deadline_s=min(max(left_s, _LEAST_S), DEADLINE_S))
            except (Unavailable, NotFound):  # one that is restarted in memory has no table before a client creates it
                if not self._closed.is_set() and left_s <= 0:
                    raise
                if not self._closed.is_set() and self._stop.wait(min(pause.next_s(), left_s)):
                    raise
            except ValueError:  # gRPC's, of a channel that another thread has closed
                if not self._closed.is_set():
                    raise
            if self._closed.is_set():
                raise FailedPrecondition("the dataset was closed while priorities waited for the server")

    def close(self) -> None:
        """End every call and thread within 2 s; waiting threads get StopIteration. May be called twice."""
        self._closed.set()
        if self._owner.is_here:
            self._resources.close()

    def _batch_within(self, wait_s: float, began_s: float) -> ReplayBatch | None:
        """Return the next batch, or None if a table has none within `wait_s` seconds; raises as `__next__`."""
        self._owner.check()
        parts: list[ReplayBatch] = []
        try:
            for table in range(len(self._tables)):
                left_s = wait_s if self._timeout_s is None else began_s + self._timeout_s - time.monotonic()
                if self._allow_smaller and left_s <= 0:
                    if self._asked_s != began_s:
                        self._asked_s = began_s
                        self._samplers[table].ask_smaller()
                    left_s += _SMALLER_S
                part = self._part_within(table, min(wait_s, max(left_s, 0.0)))
                if part is None and left_s <= 0 and self._timeout_s is not None:
                    raise self._overdue(table)
                if part is None:
                    return None
                parts.append(part)
            whole, parts = parts, []
        finally:
            for ready, part in zip(self._ready, parts, strict=False):
                ready.appendleft(part)  # for the next attempt
        return whole[0] if len(whole) == 1 else ReplayBatch.joined(whole)

    def _part_within(self, table: int, wait_s: float) -> ReplayBatch | None:
        """Return the next batch of one table; a sample with bytes that do not decode is skipped."""
        ready, size = self._ready[table], self._sizes[table]
        while not (self._closed.is_set() or self._stop.is_set() or self._stop_here.is_set()):
            with suppress(IndexError):  # nothing is ready, or another thread was faster
                return ready.popleft()
            if (sample := self._samplers[table].take(wait_s)) is None:
                return None
            if sample.epoch is not None and self._epochs and sample.epoch.number >= self._epochs:
                self._stop_here.set()
                break
            with suppress(CorruptBlocks):
                columns = self._columns(table, sample)
                if columns is not None:
                    count = len(sample.keys)
                    starts = range(0, count if self._allow_smaller else count - size + 1, size)
                    ready.extend(self._made(table, sample, columns, slice(start, start + size)) for start in starts)
        raise EndOfBatches

    def _overdue(self, table: int) -> Unavailable | EndOfBatches:
        """Return what is raised where no batch comes in time: what is known of why, or the end."""
        config, size = self._tables[table], self._sizes[table]
        message = f"no batch of table {config.name!r} within {self._timeout_s:g} s: "
        with suppress(TidemillError), ReplayClient(self._addresses[0], deadline_s=_EXPLAIN_S) as client:
            found = client.describe_table(config.name)
            if self._end_on_timeout:
                return EndOfBatches()
            limiter = found.config.rate_limiter
            message += (
                f"it has {found.items} items after {found.inserts} inserts and {found.samples} samples, with "
                f"min_size {limiter.min_size} and samples_per_insert {limiter.samples_per_insert:g}"
            )
            if 0 < found.items < size and not self._allow_smaller and config.max_times_sampled:
                message += f"; they are fewer than a batch of {size}: allow_smaller=True takes them"
            return Unavailable(message)
        return Unavailable(f"{message}no replay server answers at {self._addresses[0]}")

    def _columns(self, table: int, batch: SampledBatch) -> dict[str, Array] | None:
        """Return the steps of a batch's items; None if the mirror no longer has them.

        Raises:
            CorruptBlocks: Some do not decode.
        """
        config, mirror = self._tables[table], self._mirrors[table]
        if mirror is None:
            decoded = decode(config.signature, batch, config.max_item_steps)
            return {name: values[decoded.index] for name, values in decoded.columns.items()}
        if len(chunks := mirror.corrupt_chunks(batch)):
            raise CorruptBlocks("", chunks)
        rows = mirror.rows_of(batch, config.max_item_steps)
        columns = {name: values[rows] for name, values in mirror.columns.items()}
        return columns if mirror.is_intact(batch) else None

    def _made(self, table: int, sample: SampledBatch, columns: dict[str, Array], part: slice) -> ReplayBatch:
        """Return some items of a sample as a batch."""
        columns = {name: values[part] for name, values in columns.items()}
        names = ragged_columns(self._tables[table].signature)
        sizes = {name: columns.pop(f"{name}{SEPARATOR}{LENGTH}") for name in names}
        weights = (sample.probabilities[part] * max(sample.table_items, 1)) ** -self._beta
        last_rows = (sample.first_rows + sample.lengths - 1)[part]
        chunks = np.searchsorted(np.cumsum(sample.step_counts), last_rows, side="right")
        return ReplayBatch(
            **values_of(sample.take(part), Per.ITEM, ItemColumns),
            columns=columns,
            sizes=sizes,
            weights=(weights / weights.max(initial=1e-38)).astype(np.float32),
            params_versions=sample.params_versions[chunks],
            tables=np.full(len(last_rows), table),
            table_items=np.full(len(last_rows), sample.table_items),
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()


def _check(prefetch: int, batches_per_sample: int, beta: float) -> None:
    for name, value in (("prefetch", prefetch), ("batches_per_sample", batches_per_sample)):
        check_integer(name, value)
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, must be at least 1")
    check_number("beta", beta)
    if not beta >= 0:
        raise InvalidArgument(f"beta is {beta}, must be at least 0")


def _split(batch_size: int, tables: Mapping[TableConfig, float]) -> list[int]:
    """Return how many items of a batch come from each table."""
    if not tables:
        raise InvalidArgument("tables is empty, must name at least one")
    first = next(iter(tables))
    for table in tables:
        if (table.signature, table.max_item_steps) != (first.signature, first.max_item_steps):
            raise InvalidArgument(
                f"tables {first.name!r} and {table.name!r} differ in signature or max_item_steps, must be equal"
            )
    if abs(sum(tables.values()) - 1) > 1e-6 or min(tables.values()) <= 0:
        fractions = {table.name: fraction for table, fraction in tables.items()}
        raise InvalidArgument(f"fractions are {fractions}, must be more than 0 and add up to 1")
    edges = np.round(np.cumsum([0.0, *tables.values()]) * batch_size).astype(int)
    sizes: list[int] = np.diff(edges).tolist()
    if min(sizes) < 1:
        raise InvalidArgument(f"batch_size is {batch_size}, which gives the tables {sizes} items, at least 1 each")
    return sizes


def _mirror(
    table: TableConfig, batch_size: int, mib: int, chunk_length: int, prefetch: int, servers: int
) -> TableMirror | None:
    """Return a mirror of a table in so much memory, or of as much of it as is of use; None for none."""
    if not mib:
        return None
    hold = prefetch + 2  # batches under way, the one that is read, and one of another thread
    parts = 1 if servers == 1 else 2 * servers  # room for servers that take the place of others
    slot_bytes = chunk_length * sum(column.step_bytes for column in table.signature)
    least = least_slots(batch_size, table.max_item_steps, chunk_length, hold)
    useful = max(table.max_items * (1 + table.max_item_steps // chunk_length), least)
    slots = min(mib * 2**20 // (slot_bytes * parts), useful, _MAX_SLOTS)
    if slots < least:
        needed = -(-least * slot_bytes * parts // 2**20)
        raise InvalidArgument(f"mirror_mib is {mib}, must be 0 or at least {needed} for batches of {batch_size} items")
    return TableMirror(table.signature, MirrorSize(slots, chunk_length, hold), parts)
