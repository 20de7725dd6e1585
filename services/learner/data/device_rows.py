"""The mirror's observations in the training device's own memory, where batches are gathered from row numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.arrays import Array, Ints
from tidemill.devices import on_stream
from tidemill.errors import DataLoss
from tidemill.observation_parts import in_order, pack
from tidemill.replay.batch import Blocks
from tidemill.replay.codec import decode_chunks
from tidemill.replay.sampling.shared_arrays import reserve_private
from tidemill.services.learner.status import metrics
from tidemill.types import OBSERVATION, Codec, ColumnSpec, ObservationPart, Signature, part_column

_STAGING_BYTES = 16 * 2**20
"""Of each of two pieces of pinned memory: one is filled while the device reads the other."""

_WORDS = (torch.int64, torch.int32, torch.int16, torch.int8)
_PREFIX = part_column("")


class Mark(Protocol):
    """A place in a queue."""

    def synchronize(self) -> None:
        """Wait until the device is past it."""


class DeviceQueue(Protocol):
    """Work for a device, which it does in the order in which it was handed over, whichever thread did."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory of the device for what is handed over from now on; not initialised."""

    def submit(self, work: Callable[[], object]) -> None:
        """Hand work over; it may be done later."""

    def mark(self) -> Mark:
        """Return the place behind all that was handed over."""


class _Passed:
    def synchronize(self) -> None:
        pass


class HostQueue:
    """On a CPU everything is done at once."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory (`DeviceQueue`)."""
        return torch.empty(shape, dtype=dtype)

    def submit(self, work: Callable[[], object]) -> None:
        """Do the work (`DeviceQueue`)."""
        work()

    def mark(self) -> Mark:
        """Return the work that has been passed (`DeviceQueue`)."""
        return _Passed()


class StreamQueue:
    """A CUDA stream.

    Attributes:
        stream: It.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory that torch counts as the stream's (`DeviceQueue`)."""
        with on_stream(self.stream):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def submit(self, work: Callable[[], object]) -> None:
        """Start the work's kernels and copies on the stream (`DeviceQueue`)."""
        with on_stream(self.stream):
            work()

    def mark(self) -> Mark:
        """Record an event (`DeviceQueue`)."""
        event: Mark = self.stream.record_event()
        return event


class RowNumbers:
    """Stands for an observation column whose rows are elsewhere: who takes rows of it gets their numbers."""

    def take(self, rows: Ints, axis: int = 0) -> Ints:
        """Return the numbers of the rows."""
        assert axis == 0
        return rows

    def __getitem__(self, rows: Ints) -> Ints:
        """Return the numbers of the rows."""
        return rows


def observation_specs(signature: Signature) -> Signature:
    """Return a table's columns of observations: one, or one of each part."""
    return tuple(spec for spec in signature if spec.name == OBSERVATION or spec.name.startswith(_PREFIX))


class DeviceRows:
    """The observations of a mirror's rows on the training device (a `RowKeeper`).

    Rows arrive through two pieces of pinned memory in turn, as many chunks at once as fit; observations of several
    parts lie packed, as networks get them. Uploads and gathers are handed to one queue: a gather reads what was kept
    before it was handed over, and a chunk that is kept later is written after it. The caller asks the mirror whether a
    batch is intact once its gathers are handed over; the mirror counts a slot as written before it hands over new rows.

    Attributes:
        device: Where they are.
        queue: Of the device.
    """

    def __init__(
        self,
        signature: Signature,
        rows: int,
        device: torch.device,
        slot_steps: int,
        queue: DeviceQueue | None = None,
        *,
        staging_bytes: int = _STAGING_BYTES,
    ) -> None:
        """Take the memory: on a GPU all of it at once, on a CPU as it is filled.

        Args:
            signature: The table's columns.
            rows: Rows of the mirror.
            device: Where they are kept.
            slot_steps: Steps of the longest chunk.
            queue: The device's; a separate one if not given.
            staging_bytes: Of each piece of pinned memory; one holds at least the longest chunk.

        Raises:
            torch.OutOfMemoryError: The device has not enough.
        """
        self._specs = observation_specs(signature)
        self.queue = queue or (StreamQueue(device) if device.type == "cuda" else HostQueue())
        self.device, self._layout = device, _Layout.of(self._specs)
        words = self._layout.words
        self._slab = (
            torch.from_numpy(reserve_private((rows, words), np.empty(0, f"i{self._layout.word.itemsize}").dtype))
            if device.type == "cpu"
            else self.queue.empty((rows, words), self._layout.word)
        )
        staging_rows = max(staging_bytes // self._layout.row_bytes, slot_steps)
        self._staging = [_Staging(self._layout, self._specs, staging_rows, pinned=device.type == "cuda") for _ in "ab"]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that are kept here (`RowKeeper`)."""
        return frozenset(spec.name for spec in self._specs)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows."""
        return self._slab.numel() * self._slab.element_size()

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that each observation takes which is handed out: none on a GPU."""
        return self._layout.row_bytes if self.device.type == "cpu" else 0

    def keep(
        self, signature: Signature, blocks: Sequence[Blocks], step_counts: Ints, places: Ints
    ) -> NDArray[np.bool_]:
        """Decode chunks and hand their rows over; return which are corrupt, [C] (`RowKeeper`)."""
        if tuple(spec.name for spec in signature) != tuple(spec.name for spec in self._specs):
            raise DataLoss(
                f"the batch has columns {[spec.name for spec in signature]}, must have {sorted(self.columns)}"
            )
        corrupt = np.zeros(len(places), np.bool_)
        for piece in _pieces(step_counts, self._staging[0].rows):
            staging = self._staging[0]
            self._staging.reverse()
            staging.wait()
            corrupt[piece] = staging.fill(_part_of(signature, blocks, step_counts, piece), step_counts[piece])
            numbers = np.repeat(places[piece], step_counts[piece]) + _within(step_counts[piece])
            self.queue.submit(partial(self._upload, *staging.staged(numbers)))
            staging.busy = self.queue.mark()
            metrics.MIRROR_ROWS_UPLOADED.inc(len(numbers))
        return corrupt

    def take(self, rows: Tensor) -> Tensor:
        """Return the observations of rows, [*rows.shape, ...], once the queue has come to it.

        Args:
            rows: Numbers of rows, int64, any shape, on the device; may still be on their way by the same queue.
        """
        found = self.queue.empty((rows.numel(), self._layout.words), self._layout.word)
        self.queue.submit(lambda: torch.index_select(self._slab, 0, rows.reshape(-1), out=found))
        return found.view(self._layout.dtype).reshape(*rows.shape, *self._layout.shape)

    def _upload(self, words: Tensor, numbers: Tensor) -> None:
        there = partial(Tensor.to, device=self.device, non_blocking=True)
        self._slab.index_copy_(0, there(numbers), there(words))


class _Layout:
    """Layout of an observation in memory.

    Attributes:
        parts: Of it, in their order; none if it is one array.
        dtype: What is handed out.
        shape: Of one observation, as it is handed out.
        row_bytes: Of one observation.
        word: The widest integers that a row consists of: few wide elements are copied sooner than many narrow ones.
        words: Of a row.
    """

    def __init__(self, parts: Sequence[ObservationPart], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.parts, self.shape = tuple(parts), shape
        self.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self.row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.word = next(word for word in _WORDS if self.row_bytes % word.itemsize == 0)
        self.words = self.row_bytes // self.word.itemsize

    @classmethod
    def of(cls, specs: Signature) -> _Layout:
        if specs[0].name == OBSERVATION:
            return cls((), np.dtype(specs[0].dtype), specs[0].shape)
        parts = in_order([ObservationPart(spec.name.removeprefix(_PREFIX), spec.dtype, spec.shape) for spec in specs])
        return cls(parts, np.dtype(np.uint8), (sum(spec.step_bytes for spec in specs),))


class _Staging:
    """A piece of memory that the device may read by itself, and the mark behind its last reading."""

    def __init__(self, layout: _Layout, specs: Signature, rows: int, *, pinned: bool) -> None:
        self.rows, self._layout = rows, layout
        self.busy: Mark = _Passed()
        self._words = torch.empty((rows, layout.words), dtype=layout.word, pin_memory=pinned)
        self._numbers = torch.empty(rows, dtype=torch.int64, pin_memory=pinned)
        self._bytes = self._words.view(torch.uint8).numpy()
        whole = self._bytes.view(specs[0].dtype).reshape(rows, *layout.shape) if not layout.parts else None
        self._columns: dict[str, Array] = {
            spec.name: np.empty((rows, *spec.shape), spec.dtype) if whole is None else whole for spec in specs
        }

    def wait(self) -> None:
        self.busy.synchronize()

    def fill(self, part: tuple[Signature, Sequence[Blocks]], step_counts: Ints) -> NDArray[np.bool_]:
        """Decode chunks one behind the other; return which are corrupt."""
        starts, steps = np.cumsum(step_counts) - step_counts, int(step_counts.sum())
        corrupt = decode_chunks(*part, step_counts, self._columns, starts)
        if self._layout.parts:
            values = {part.name: self._columns[part_column(part.name)][:steps] for part in self._layout.parts}
            self._bytes[:steps] = pack(self._layout.parts, values, (steps,))
        return corrupt

    def staged(self, numbers: Ints) -> tuple[Tensor, Tensor]:
        """Return the words of the rows that were filled, and where they go."""
        self._numbers[: len(numbers)] = torch.from_numpy(numbers)
        return self._words[: len(numbers)], self._numbers[: len(numbers)]


def _pieces(step_counts: Ints, rows: int) -> list[slice]:
    """Return chunks in pieces of at most so many rows; a chunk alone has at most as many."""
    pieces, first, ends = list[slice](), 0, np.cumsum(step_counts)
    while first < len(step_counts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + rows, side="right")), first + 1)
        pieces.append(slice(first, last))
        first = last
    return pieces


def _part_of(
    signature: Signature, blocks: Sequence[Blocks], step_counts: Ints, piece: slice
) -> tuple[Signature, Sequence[Blocks]]:
    """Return the blocks of some chunks."""
    if piece == slice(0, len(step_counts)):
        return signature, blocks
    return signature, [_cut(spec, column, step_counts, piece) for spec, column in zip(signature, blocks, strict=True)]


def _cut(spec: ColumnSpec, column: Blocks, step_counts: Ints, piece: slice) -> Blocks:
    sizes = step_counts * spec.step_bytes if spec.codec is Codec.RAW else column.sizes
    if len(sizes) != len(step_counts) or int(sizes.sum()) != len(column.data):
        raise DataLoss(
            f"column {spec.name!r} has {len(column.data)} bytes, must have {int(sizes.sum())} like its blocks"
        )
    first = int(sizes[: piece.start].sum())
    data = column.data[first : first + int(sizes[piece].sum())]
    return Blocks(data, column.sizes[piece])


def _within(step_counts: Ints) -> Ints:
    """Return the number of each step in its chunk."""
    steps: Ints = np.arange(int(step_counts.sum())) - np.repeat(np.cumsum(step_counts) - step_counts, step_counts)
    return steps


def with_row_numbers(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return columns with the numbers of their rows as observations."""
    numbers: Any = RowNumbers()  # all that an agent with `observation_columns` asks of that column
    return {**columns, OBSERVATION: numbers}
