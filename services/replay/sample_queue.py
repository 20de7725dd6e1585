"""Batches that a caller of Sample is ready to take."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np

from tidemill.errors import InvalidArgument
from tidemill.replay.limits import MAX_DRAWS
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.tables.epochs import Epochs
from tidemill.services.replay.tables.rate_limiter import RateLimiter
from tidemill.services.replay.tables.table import Table

MAX_BATCH_BYTES = 2**31 - 2**24
"""Bytes of the largest batch: protobuf's messages end at 2 GiB."""


@dataclass(frozen=True, slots=True)
class SampleDemand:
    """One batch that a caller is ready to take.

    Attributes:
        items: How many items; 0 asks for the table's state alone.
        counted: Samples the rate limiter is to count for it, as the caller says; None if the limiter is to admit and
            count it by itself.
        batch_size: Size of a batch that comes without one.
        seed: Of the draw; None draws by the table's generator.
        at_step_count: Steps of all streams at which it is drawn; None draws as soon as it can be.
        first: Whether it takes what others wait to be more.
    """

    items: int
    counted: int | None = None
    batch_size: int = 0
    seed: int | None = None
    at_step_count: int | None = None
    first: bool = False

    def counted_by(self, limiter: RateLimiter) -> int | None:
        """Return the samples that a limiter counts for it; None if it is to count them by itself."""
        return None if self.counted is None else limiter.countable(self.counted, self.batch_size)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSample:
    """Request with which a call of Sample was opened.

    Attributes:
        table: The table.
        batch_size: Items of a batch, at most.
        without_replacement: Whether no item may come twice in a batch.
        mirror: The chunks that the caller keeps; None if it keeps none.
        slot_steps: Most steps of a chunk that it keeps.
        item_counts: Whether batches say how old items are and how often they were sampled.
        most_bytes: Bytes of the largest batch that the caller can take.
        part_bytes: Bytes of a batch that go in one message.
        caller_settles: Whether the caller says which batches it handed on.
        rng: Source of the draws, if the caller gave a seed.
        allow_smaller: Whether the caller may ask for a smaller batch.
        epochs: Where the call is in the epochs of the table, if it draws by them.
    """

    table: Table
    batch_size: int
    without_replacement: bool = False
    mirror: ChunkMirror | None = None
    slot_steps: int = 0
    item_counts: bool = False
    most_bytes: int = MAX_BATCH_BYTES
    part_bytes: int = MAX_BATCH_BYTES
    caller_settles: bool = False
    rng: np.random.Generator | None = None
    allow_smaller: bool = False
    epochs: Epochs | None = None

    @property
    def settles(self) -> bool:
        """Whether batches are settled by the caller now: the table may be given a limit while the call is open."""
        return self.caller_settles and bool(self.table.config.max_times_sampled)

    @property
    def may_shrink(self) -> bool:
        """Whether a batch may become smaller while it waits; one of an epoch never waits for items."""
        return self.allow_smaller and self.epochs is None


class SampleQueue:
    """Credit that the reading side grants and the sending side takes, in order."""

    def __init__(self, batch_size: int) -> None:
        """Begin with nothing; `batch_size` is the size of a batch that comes without one.

        Attributes:
            smaller: Set when the caller asks for a smaller batch.
        """
        self.smaller = asyncio.Event()
        self._whole = SampleDemand(batch_size)
        self._waiting: deque[tuple[SampleDemand, int]] = deque()  # each so often
        self._draws = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def grant(self, count: int) -> None:
        """Add batches of the usual size."""
        if count:
            if self._waiting and self._waiting[-1][0] is self._whole:
                count += self._waiting.pop()[1]
            self._waiting.append((self._whole, count))
            self._changed.set()

    def draw(self, items: int, counted: int, seed: int | None = None, at_step_count: int | None = None) -> None:
        """Add a batch with its own size; the arguments are those of `SampleDemand`.

        Raises:
            InvalidArgument: it is larger than the usual size, or too many wait.
        """
        if items > self._whole.items:
            raise InvalidArgument(f"draws.items is {items}, must be at most batch_size ({self._whole.items})")
        if self._draws == MAX_DRAWS:
            raise InvalidArgument(f"more than {MAX_DRAWS} draws wait, take the answers first")
        self._draws += 1
        self._waiting.append((SampleDemand(items, counted, self._whole.items, seed, at_step_count), 1))
        self._changed.set()

    async def closed(self) -> None:
        """Wait until no more is granted; raises like `take`."""
        while not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    def close(self, error: BaseException | None = None) -> None:
        """Note that no more is granted, because the caller half-closed or, with `error`, sent something wrong."""
        self._closed = True
        self._error = error
        self._changed.set()

    async def take(self) -> SampleDemand | None:
        """Take one batch, waiting for it; return None once all are taken and no more will come.

        Raises:
            TidemillError: the caller sent something wrong.
        """
        while not self._waiting:
            if self._closed:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if not self._waiting:
            return None
        wanted, count = self._waiting.popleft()
        if count > 1:
            self._waiting.appendleft((wanted, count - 1))
        self._draws -= wanted.counted is not None
        return wanted
