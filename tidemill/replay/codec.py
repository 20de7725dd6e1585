"""Columns of chunks to blocks of bytes and back; of an LZ4 block no more than the rows that are asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import lz4.block
import numpy as np
from lz4.block import _block
from numpy.typing import NDArray

from tidemill import kernel
from tidemill.arrays import Array
from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.types import Codec, ColumnSpec, Signature


class Decompress(Protocol):
    """Fills memory with the first bytes of a block; the caller vouches for the addresses."""

    def __call__(self, source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
        """Write at most `wanted_bytes` at the address `target`; return how many, or a negative number.

        Args:
            source: Address of the block.
            source_bytes: Its size.
            target: Address to fill.
            wanted_bytes: How many bytes from the block's beginning, at most `raw_bytes`.
            raw_bytes: Size of the whole block when decompressed; a larger one is refused if all of it is wanted.
        """


def _open_library() -> ctypes.CDLL | None:
    """Return LZ4's own functions, which the Python binding carries but does not offer."""
    library = ctypes.CDLL(_block.__file__)  # its calls let other threads run
    names = ("LZ4_decompress_safe", "LZ4_decompress_safe_partial")
    return library if all(hasattr(library, name) for name in names) else None


def _from_library(library: ctypes.CDLL) -> Decompress:
    """Return the function on LZ4's own."""
    whole, partial = library.LZ4_decompress_safe, library.LZ4_decompress_safe_partial
    whole.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    partial.argtypes = [*whole.argtypes, ctypes.c_int]

    def decompress(source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
        if wanted_bytes == raw_bytes:
            return int(whole(source, target, source_bytes, wanted_bytes))
        return int(partial(source, target, source_bytes, wanted_bytes, wanted_bytes))

    return decompress


def through_binding(source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
    """Decompress through the Python binding, which gives all of a block and copies it; see `Decompress`."""
    block = (ctypes.c_char * source_bytes).from_address(source)
    try:
        raw = lz4.block.decompress(block, uncompressed_size=raw_bytes)
    except lz4.block.LZ4BlockError:
        return -1
    count = min(len(raw), wanted_bytes)
    ctypes.memmove(target, raw, count)
    return count


def _addresses(library: ctypes.CDLL) -> tuple[int, int]:
    functions = (library.LZ4_decompress_safe, library.LZ4_decompress_safe_partial)
    whole, partial = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return whole, partial


_library = _open_library()
decompress_prefix: Decompress = through_binding if _library is None else _from_library(_library)
"""Writes the first bytes of a block to an address."""
addresses = None if _library is None else _addresses(_library)
"""Of LZ4's functions for whole blocks and for prefixes, for the kernel."""


def decompress_prefixes(blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Decompress many blocks in order, with the kernel in one call; return which gave what was wanted, [N].

    Each call from Python drops and takes back the interpreter's lock, which keeps decoding threads from each other.

    Args:
        blocks: For each block the arguments of `Decompress`, [N, 5].
    """
    if kernel.available and addresses is not None:
        return np.equal(kernel.decompress(*addresses, blocks), blocks[:, 3])
    return np.array([decompress_prefix(*block) == block[3] for block in blocks.tolist()], dtype=np.bool_)


class CorruptBlocks(DataLoss):
    """Blocks do not decode to what their column holds; `chunks` says of which chunks of the batch, int64 [N]."""

    def __init__(self, column: str, chunks: NDArray[np.int64]) -> None:
        """Take the column's name and the places of the chunks."""
        super().__init__(f"blocks of column {column!r} are corrupt in {len(chunks)} chunks")
        self.chunks = chunks


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """The rows that a batch's items cover, and perhaps some between them.

    Attributes:
        columns: Each column of the signature, [R, ...]; rows of one stream are in order.
        index: Rows of each item, oldest first, int64 [B, L] with L the longest item asked for. A shorter item,
            as there are at a stream's start, repeats its first row in front.
        encoded: The column that was left out of `columns`, if one was. Its rows are numbered as those of the others.
    """

    columns: dict[str, Array]
    index: NDArray[np.int64]
    encoded: EncodedColumn | None = None


def encode(signature: Signature, columns: Mapping[str, Array], acceleration: int = 1) -> tuple[bytes, ...]:
    """Return the blocks of one chunk, one for each column of the signature in its order.

    Args:
        signature: The columns of the stream.
        columns: Each column's steps, [steps, ...], with the signature's dtype and shape.
        acceleration: LZ4's; 1 is the densest of its fast mode, more is faster and larger.

    Raises:
        InvalidArgument: a column is missing, or has another dtype, shape or number of steps.
    """
    steps = len(next(iter(columns.values()), ()))
    return tuple(_encode_column(spec, columns, steps, acceleration) for spec in signature)


def decode(signature: Signature, batch: SampledBatch, length: int, *, later: str = "") -> DecodedBatch:
    """Return the columns and rows of a sampled batch. Safe to call from several threads.

    Args:
        signature: The columns of the table.
        batch: What the sampler received.
        length: Steps of a full item, the L of `index`.
        later: A column to leave encoded until it is known which of its rows go where.

    Raises:
        CorruptBlocks: LZ4 blocks do not decode to the size the signature says; the batch without the items that need
            them (`SampledBatch.needing`) decodes.
        DataLoss: the columns are not those of the signature, or an item lies outside the rows.
        InvalidArgument: an item is longer than `length`.
    """
    if len(batch.blocks) != len(signature):
        raise DataLoss(f"the batch has {len(batch.blocks)} columns, the signature {len(signature)}")
    index = window_index(batch.first_rows, batch.lengths, length, int(batch.step_counts.sum()))
    cover = _Cover.of(batch)
    encoded = {
        spec.name: EncodedColumn(spec, blocks, batch.step_counts, cover)
        for spec, blocks in zip(signature, batch.blocks, strict=True)
    }
    columns = {name: column.decode() for name, column in encoded.items() if name != later}
    return DecodedBatch(columns, cover.place[index], encoded.get(later))


def decode_chunks(
    signature: Signature,
    blocks: Sequence[Blocks],
    step_counts: NDArray[np.int64],
    columns: Mapping[str, Array],
    places: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Decode whole chunks to where their rows are kept; return which of them are corrupt, [C].

    Args:
        signature: The columns.
        blocks: The chunks' blocks, one entry for each column.
        step_counts: Steps of each chunk, [C].
        columns: Where the rows of each column go, C-contiguous [R, ...].
        places: Row for the first step of each chunk, [C].

    Raises:
        DataLoss: The blocks are not those of the signature, or a chunk would lie outside of the rows.
    """
    if len(blocks) != len(signature):
        raise DataLoss(f"the chunks have {len(blocks)} columns, the signature {len(signature)}")
    rows = len(next(iter(columns.values())))
    if len(places) and (int(places.min()) < 0 or int((places + step_counts).max()) > rows):
        raise DataLoss(f"a chunk would lie outside of {rows} rows")
    corrupt = np.zeros(len(places), dtype=np.bool_)
    within = np.arange(int(step_counts.sum())) - np.repeat(np.cumsum(step_counts) - step_counts, step_counts)
    targets = np.repeat(places, step_counts) + within
    for spec, column in zip(signature, blocks, strict=True):
        if spec.codec is Codec.RAW:
            columns[spec.name][targets] = _raw_rows(spec, column, len(targets))
        else:
            corrupt |= _decompress_chunks(spec, column, step_counts, columns[spec.name], places)
    return corrupt


def _decompress_chunks(
    spec: ColumnSpec, blocks: Blocks, step_counts: NDArray[np.int64], rows: Array, places: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Decompress a column of whole chunks to their places; return which are corrupt, [C]."""
    _check_sizes(spec, blocks, step_counts)
    wanted = step_counts * spec.step_bytes
    calls = np.stack(
        [_addresses_of(blocks), blocks.sizes, rows.ctypes.data + places * spec.step_bytes, wanted, wanted], axis=1
    )
    return ~decompress_prefixes(calls)


@dataclass(frozen=True, slots=True, eq=False)
class _Cover:
    """Which rows of the chunks are kept: of each chunk, from the first to the last that an item covers.

    The rest is left out, because moving bytes through memory costs more than decompressing them.

    Attributes:
        begins: First row of each chunk that is decoded, counted in the chunk, int64 [C].
        ends: The row after the last, int64 [C].
        rows: The rows decoded, counted over all chunks, int64 [R].
        place: Where each row of the chunks is among the decoded ones, int64; meaningless for the others.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, batch: SampledBatch) -> _Cover:
        """Return the cover of a batch whose items lie within its rows."""
        counts = batch.step_counts
        starts = np.cumsum(counts) - counts
        change = np.zeros(int(counts.sum()) + 1, dtype=np.int64)
        np.add.at(change, batch.first_rows, 1)
        np.add.at(change, batch.first_rows + batch.lengths, -1)
        covered = np.flatnonzero(np.cumsum(change[:-1]))
        chunk = np.repeat(np.arange(len(counts)), counts)
        within = covered - starts[chunk[covered]]
        begins, ends = counts.copy(), np.zeros_like(counts)
        np.minimum.at(begins, chunk[covered], within)
        np.maximum.at(ends, chunk[covered], within + 1)
        ends = np.maximum(begins, ends)  # a chunk without items is left out
        row = np.arange(len(chunk)) - starts[chunk]
        decoded = (row >= begins[chunk]) & (row < ends[chunk])
        return cls(begins, ends, np.flatnonzero(decoded), np.cumsum(decoded) - 1)

    def origin(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunk of each decoded row, and which of the chunk's rows it is, both [R]."""
        kept = self.ends - self.begins
        chunk = np.repeat(np.arange(len(kept)), kept)
        return chunk, np.arange(len(chunk)) - (np.cumsum(kept) - kept - self.begins)[chunk]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedColumn:
    """A column of a batch as it arrived."""

    _spec: ColumnSpec
    _blocks: Blocks
    _step_counts: NDArray[np.int64]
    _cover: _Cover

    def decode(self) -> Array:
        """Return the rows that items cover, [R, ...].

        Raises:
            CorruptBlocks: LZ4 blocks do not decode to the size the signature says.
            DataLoss: The bytes are not those of so many blocks or rows.
        """
        if self._spec.codec is Codec.RAW:
            return _raw_rows(self._spec, self._blocks, len(self._cover.place))[self._cover.rows]
        _check_sizes(self._spec, self._blocks, self._step_counts)
        return _decompress(self._spec, self._blocks, self._step_counts, self._cover)

    def take(self, rows: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Return `decode()[numbers]` under the name of each array of row numbers, [*numbers.shape, ...].

        With the kernel each LZ4 block is decoded in the processor's cache, and only the rows asked for leave it.

        Raises:
            CorruptBlocks: As `decode`.
            DataLoss: As `decode`.
            IndexError: There is no such row.
        """
        if self._spec.codec is Codec.RAW or not kernel.available or addresses is None:
            decoded = self.decode()
            return {name: decoded.take(numbers, axis=0) for name, numbers in rows.items()}  # copies whole rows
        _check_sizes(self._spec, self._blocks, self._step_counts)
        spec, cover, step_bytes = self._spec, self._cover, self._spec.step_bytes
        chunk, within = (of_row[np.concatenate([each.ravel() for each in rows.values()])] for of_row in cover.origin())
        taken = {name: np.empty((*numbers.shape, *spec.shape), spec.dtype) for name, numbers in rows.items()}
        targets = [array.ctypes.data + np.arange(rows[name].size) * step_bytes for name, array in taken.items()]
        copies = np.stack([within * step_bytes, np.concatenate(targets)], axis=1)
        order = np.argsort(chunk, kind="stable")  # neighbours of a stack stay side by side
        calls = np.stack(
            [_addresses_of(self._blocks), self._blocks.sizes, cover.ends * step_bytes, self._step_counts * step_bytes,
             np.bincount(chunk, minlength=len(cover.ends))], axis=1)  # fmt: skip
        chunks = np.flatnonzero(cover.ends > cover.begins)
        written = kernel.decompress_rows(*addresses, calls[chunks], copies[order], step_bytes)
        if (corrupt := written != calls[chunks, 2]).any():
            raise CorruptBlocks(spec.name, chunks[corrupt])
        return taken


def _encode_column(spec: ColumnSpec, columns: Mapping[str, Array], steps: int, acceleration: int) -> bytes:
    array = columns.get(spec.name)
    if array is None:
        raise InvalidArgument(f"column {spec.name!r} is missing, got {sorted(columns)}")
    if array.dtype != spec.dtype or array.shape != (steps, *spec.shape):
        raise InvalidArgument(
            f"column {spec.name!r} is {array.dtype} {array.shape}, must be {spec.dtype} {(steps, *spec.shape)}"
        )
    if spec.codec is Codec.RAW:
        return array.tobytes()
    raw = np.ascontiguousarray(array).data.cast("B")
    block: bytes = lz4.block.compress(raw, store_size=False, acceleration=acceleration)
    return block


def _raw_rows(spec: ColumnSpec, blocks: Blocks, rows: int) -> Array:
    """Return the rows [R, ...] of a RAW column, over the bytes they came in."""
    if len(blocks.data) != rows * spec.step_bytes:
        raise DataLoss(
            f"column {spec.name!r} has {len(blocks.data)} bytes where its signature says {rows * spec.step_bytes}"
        )
    return np.frombuffer(blocks.data, dtype=spec.dtype).reshape(rows, *spec.shape)


def _check_sizes(spec: ColumnSpec, blocks: Blocks, step_counts: NDArray[np.int64]) -> None:
    if len(blocks.sizes) != len(step_counts) or int(blocks.sizes.sum()) != len(blocks.data):
        raise DataLoss(f"the blocks of column {spec.name!r} do not add up to its {len(blocks.data)} bytes")


def _addresses_of(blocks: Blocks) -> NDArray[np.int64]:
    """Return the address of each chunk's block, [C], valid as long as the blocks are held."""
    first = np.frombuffer(blocks.data, dtype=np.uint8).ctypes.data
    addresses: NDArray[np.int64] = first + np.cumsum(blocks.sizes) - blocks.sizes
    return addresses


def _decompress(spec: ColumnSpec, blocks: Blocks, step_counts: NDArray[np.int64], cover: _Cover) -> Array:
    """Return the covered rows [R, ...], each chunk decompressed in place and no further than its last covered row.

    A chunk's rows before its first covered one are written too, over the end of the chunk before it. So the last
    chunk comes first, and the first ones have `spare` rows to write over.
    """
    step_bytes = spec.step_bytes
    kept = cover.ends - cover.begins
    first = np.cumsum(kept) - kept - cover.begins  # where each chunk's row 0 belongs
    spare = int(max(0, -first[kept > 0].min(initial=0)))
    array = np.empty((spare + len(cover.rows), *spec.shape), dtype=spec.dtype)
    calls = np.stack(
        [_addresses_of(blocks), blocks.sizes, array.ctypes.data + (spare + first) * step_bytes, cover.ends * step_bytes,
         step_counts * step_bytes], axis=1)  # fmt: skip
    chunks = np.flatnonzero(kept)[::-1]
    is_whole = decompress_prefixes(calls[chunks])
    if not is_whole.all():
        raise CorruptBlocks(spec.name, chunks[~is_whole])
    return array[spare:]


def window_index(
    first_rows: NDArray[np.int64], lengths: NDArray[np.int64], length: int, rows: int
) -> NDArray[np.int64]:
    """Return the rows of each item, oldest first, int64 [B, length]; a shorter item repeats its first row in front.

    Args:
        first_rows: First row of each item, [B].
        lengths: Its rows, [B].
        length: Rows of a full item.
        rows: How many rows there are.

    Raises:
        DataLoss: An item ends behind the last row.
        InvalidArgument: An item is longer than `length`.
    """
    if len(lengths) and int(lengths.max()) > length:
        raise InvalidArgument(f"an item has {int(lengths.max())} steps, more than the {length} asked for")
    if len(lengths) and int((first_rows + lengths).max()) > rows:
        raise DataLoss(f"an item ends at row {int((first_rows + lengths).max())} of {rows}")
    behind = np.arange(length, dtype=np.int64) - (length - lengths)[:, None]
    index: NDArray[np.int64] = first_rows[:, None] + np.maximum(behind, 0)
    return index
