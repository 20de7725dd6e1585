"""Plan of an import: messages that append an exported table so that its items keep their order of insertion."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay.limits import MAX_ENV_COUNT
from tidemill.replay.transfer.exported_table import ExportedTable

_MESSAGE_ITEMS, _MESSAGE_BYTES, _MESSAGE_CHUNKS = 4096, 4 * 2**20, 512
"""Of a message that is put together; more only if items cannot be told apart by their last chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedChunk:
    """A chunk of a message.

    Attributes:
        index: Which chunk of the export it is.
        lane: Which stream of the appender it goes to.
        first_step: Number of its first step there.
    """

    index: int
    lane: int
    first_step: int


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMessage:
    """Chunks, and the items that end in them.

    Attributes:
        chunk_length: Steps of the chunks; one that has fewer is padded.
        chunks: The chunks, those of a stream in order.
        items: The items, as a range of the export's.
        chunk_indices: For each item which of `chunks` has its last step, int64 [N].
        last_offsets: Position of its last step in that chunk, int64 [N].
    """

    chunk_length: int
    chunks: Sequence[PlannedChunk]
    items: slice
    chunk_indices: Ints
    last_offsets: Ints


class ImportPlan:
    """Plan that turns the chunks of an export into streams.

    Consecutive chunks of a stream are a *run*. A run is appended to a *lane*, a stream of the importing writer, that it
    leaves to another run when its last chunk was sent. An item goes into the message of its last chunk.

    Attributes:
        lanes: How many lanes there are, by the length of their chunks.
    """

    def __init__(self, exported: ExportedTable) -> None:
        """Plan.

        Raises:
            DataLoss: The items are not in an order in which they can have been inserted.
            InvalidArgument: More streams are written at a time than one writer may have.
        """
        self._step_counts, continues = exported.step_counts, exported.continues
        self._run = np.cumsum(~continues) - 1
        self._first_of_run = np.flatnonzero(~continues)
        self._length_of_run = self._step_counts[self._first_of_run]
        ends = np.cumsum(self._step_counts)
        last_rows = exported.first_rows + exported.lengths - 1
        self._last = np.searchsorted(ends, last_rows, side="right")
        self._offset = last_rows - (ends - self._step_counts)[self._last] if len(last_rows) else last_rows
        self._check_order()
        self._bytes_of_step = sum(column.step_bytes for column in exported.config.signature)
        self._starts = self._messages()
        self._lifetimes = self._count_lanes()

    def messages(self) -> Iterator[PlannedMessage]:
        """Yield the messages in order."""
        sent = self._first_of_run.copy()  # next chunk of each run
        lane_of = np.full(len(sent), -1, dtype=np.int64)
        free = {length: list(range(count)) for length, count in self.lanes.items()}
        steps = {length: [0] * count for length, count in self.lanes.items()}
        bounds = [*self._starts, len(self._last)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            last = self._last[start:stop]
            runs, of_run = np.unique(self._run[last], return_inverse=True)
            length = int(self._length_of_run[runs[0]])
            lowest, highest = np.full(len(runs), len(self._run)), np.zeros(len(runs), dtype=np.int64)
            np.minimum.at(lowest, of_run, last)
            np.maximum.at(highest, of_run, last)
            leading: list[PlannedChunk] = []  # those in which no item ends: a long message is divided behind them
            chunks: list[PlannedChunk] = []
            for run, low, high in zip(runs.tolist(), lowest.tolist(), highest.tolist(), strict=True):
                if lane_of[run] < 0:
                    lane_of[run] = heapq.heappop(free[length])
                lane = int(lane_of[run])
                for index in range(int(sent[run]), high + 1):
                    (leading if index < low else chunks).append(PlannedChunk(index, lane, steps[length][lane]))
                    steps[length][lane] += length
                sent[run] = high + 1
            for run in runs[self._lifetimes[runs, 1] == number].tolist():
                heapq.heappush(free[length], int(lane_of[run]))
            chunks = leading + chunks
            places = {chunk.index: place for place, chunk in enumerate(chunks)}
            yield PlannedMessage(
                length,
                chunks,
                slice(start, stop),
                np.array([places[index] for index in last.tolist()], dtype=np.int64),
                self._offset[start:stop],
            )

    def _check_order(self) -> None:
        """DataLoss: an item comes after one that ends in a later chunk of its stream, or chunks vary in length."""
        counts, length = self._step_counts, self._length_of_run[self._run]
        is_last = np.ones(len(counts), dtype=np.bool_)
        is_last[:-1] = self._run[1:] != self._run[:-1]
        if (counts > length).any() or (counts[~is_last] != length[~is_last]).any():
            raise DataLoss("the export is damaged: the chunks of a stream differ in length")
        runs = self._run[self._last]
        by_run = np.argsort(runs, kind="stable")
        back = (np.diff(self._last[by_run]) < 0) & (np.diff(runs[by_run]) == 0)
        if back.any():
            raise DataLoss("the export is damaged: its items are not in the order in which their steps were written")

    def _messages(self) -> Ints:
        """Return where each message begins among the items: no chunk has items on both sides of a beginning."""
        count = len(self._last)
        last_use = np.zeros(len(self._step_counts), dtype=np.int64)
        last_use[self._last] = np.arange(count)  # of a chunk named more than once the last one counts
        ends = np.flatnonzero(np.maximum.accumulate(last_use[self._last]) == np.arange(count)) + 1
        self._equalise(ends)
        lengths = self._length_of_run[self._run[self._last]]
        starts, begin, group = [], 0, 0
        chunks: set[int] = set()
        for end in ends.tolist():
            more = set(self._last[group:end].tolist())
            together = len(chunks) + len(more)
            is_full = end - begin > _MESSAGE_ITEMS or together > _MESSAGE_CHUNKS
            is_full |= together * int(lengths[group]) * self._bytes_of_step > _MESSAGE_BYTES
            if group > begin and (is_full or lengths[group] != lengths[begin]):
                starts.append(begin)
                begin, chunks = group, set()
            chunks |= more
            group = end
        return np.array([*starts, begin] if count else [], dtype=np.int64)

    def _equalise(self, ends: Ints) -> None:
        """Give runs of one chunk, which may have ended early, the length of the chunks that were sent with them.

        Raises:
            DataLoss: Chunks of different lengths are mixed.
        """
        group = np.searchsorted(ends, np.arange(len(self._last)), side="right")
        runs = self._run[self._last]
        longest = np.zeros(len(ends), dtype=np.int64)
        np.maximum.at(longest, group, self._length_of_run[runs])
        is_single = np.bincount(self._run, minlength=len(self._length_of_run)) == 1
        self._length_of_run[runs[is_single[runs]]] = longest[group[is_single[runs]]]
        if (self._length_of_run[runs] != longest[group]).any():
            raise DataLoss("the export is damaged: chunks of different lengths are mixed")

    def _count_lanes(self) -> NDArray[np.int64]:
        """Count the lanes; return the first and the last message of each run, [R, 2]."""
        number = np.searchsorted(self._starts, np.arange(len(self._last)), side="right") - 1
        found = np.full((len(self._first_of_run), 2), -1, dtype=np.int64)
        runs = self._run[self._last]
        found[runs[::-1], 0] = number[::-1]
        found[runs, 1] = number
        self.lanes: dict[int, int] = {}
        for length in np.unique(self._length_of_run).tolist():
            of_length = found[(self._length_of_run == length) & (found[:, 0] >= 0)]
            change = np.zeros(len(self._starts) + 1, dtype=np.int64)
            np.add.at(change, of_length[:, 0], 1)
            np.add.at(change, of_length[:, 1] + 1, -1)
            self.lanes[length] = most = int(np.cumsum(change).max(initial=0))
            if most > MAX_ENV_COUNT:
                raise InvalidArgument(
                    f"{most} streams were written at a time, at most {MAX_ENV_COUNT} can be: export fewer items at once"
                )
        return found
