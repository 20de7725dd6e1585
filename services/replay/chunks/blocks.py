"""The encoded blocks of chunks. What is in memory only now is where a log on disk takes over."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.replay.batch import Blocks
from tidemill.types import Codec, Signature


class BlockStore(Protocol):
    """Keeps the blocks of chunks by slot; never looks inside one."""

    def put(self, slot: int, blocks: Sequence[bytes]) -> None:
        """Keep a chunk's blocks, one for each column of the signature."""
        ...

    def drop(self, slots: NDArray[np.int64]) -> None:
        """Forget the blocks of chunks [N]."""
        ...

    def read(self, slots: NDArray[np.int64], step_counts: NDArray[np.int64]) -> tuple[Blocks, ...]:
        """Return the blocks of chunks [N], all in memory, side by side, one entry for each column."""
        ...

    def blobs(self, slots: NDArray[np.int64]) -> Sequence[bytes]:
        """Return the data that a log must keep of chunks [N] that were just put; empty without a log."""
        ...


class MemoryBlocks:
    """Blocks in memory.

    The RAW blocks of a chunk are kept as one byte string: their sizes follow from the signature, so that those of
    many chunks are cut apart by one reshape. Each LZ4 block is a separate byte string.
    """

    def __init__(self, signature: Signature) -> None:
        """Create an empty store for streams of one signature."""
        self._raw_columns = [i for i, column in enumerate(signature) if column.codec is Codec.RAW]
        self._packed_columns = [i for i, column in enumerate(signature) if column.codec is Codec.LZ4]
        widths = [signature[i].step_bytes for i in self._raw_columns]
        self._raw_starts = [sum(widths[:i]) for i in range(len(widths) + 1)]  # per step, the end included
        self._raw: list[bytes] = []
        self._packed: list[list[bytes]] = [[] for _ in self._packed_columns]

    def put(self, slot: int, blocks: Sequence[bytes]) -> None:
        """Keep a chunk's blocks; slots must first be used in order."""
        if slot == len(self._raw):
            self._raw.append(b"")
            for column in self._packed:
                column.append(b"")
        self._raw[slot] = b"".join(map(blocks.__getitem__, self._raw_columns))
        for column, i in zip(self._packed, self._packed_columns, strict=True):
            column[slot] = blocks[i]

    def drop(self, slots: NDArray[np.int64]) -> None:
        """Forget the blocks of chunks [N]."""
        for column in (self._raw, *self._packed):
            for slot in slots.tolist():
                column[slot] = b""

    def blobs(self, slots: NDArray[np.int64]) -> Sequence[bytes]:  # noqa: ARG002 - the interface's
        """Return nothing: there is no log."""
        return ()

    def read(self, slots: NDArray[np.int64], step_counts: NDArray[np.int64]) -> tuple[Blocks, ...]:
        """Return the blocks of chunks [N] side by side, one entry for each column."""
        picked = slots.tolist()
        blocks: dict[int, Blocks] = {}
        for column, i in zip(self._packed, self._packed_columns, strict=True):
            parts = [column[slot] for slot in picked]
            sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
            blocks[i] = Blocks(b"".join(parts), sizes)
        if self._raw_columns:
            raws = [self._raw[slot] for slot in picked]
            for i, data in zip(self._raw_columns, cut_raw(raws, step_counts, self._raw_starts), strict=True):
                blocks[i] = Blocks(data, np.empty(0, dtype=np.int64))
        return tuple(blocks[i] for i in range(len(blocks)))


def cut_raw(raws: list[bytes], step_counts: NDArray[np.int64], starts: Sequence[int]) -> list[bytes]:
    """Return each RAW column's bytes of all chunks, joined.

    Args:
        raws: The RAW blocks of each chunk, joined.
        step_counts: Steps of each, [N].
        starts: Where each column starts in a step's bytes, and where the last one ends.
    """
    spans = list(itertools.pairwise(starts))
    if not raws:
        return [b""] * len(spans)
    steps = int(step_counts[0])
    if (step_counts == steps).all():
        joined = np.frombuffer(b"".join(raws), dtype=np.uint8).reshape(len(raws), -1)
        return [joined[:, steps * start : steps * end].tobytes() for start, end in spans]
    counts = step_counts.tolist()  # the last chunks of ended streams are shorter
    return [b"".join([raw[n * start : n * end] for raw, n in zip(raws, counts, strict=True)]) for start, end in spans]
