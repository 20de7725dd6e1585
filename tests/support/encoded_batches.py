"""Batches as a server sends them, whole or damaged, and the Python code in place of the kernel that decodes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tidemill import kernel
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.types import Codec, Signature


def batch_of(
    signature: Signature, chunks: Sequence[tuple[bytes, ...]], counts: Sequence[int], items: Sequence[tuple[int, int]]
) -> SampledBatch:
    """Return a batch of encoded chunks with items (first row, length), as a server would send it."""
    blocks = []
    for i, column in enumerate(signature):
        parts = [chunk[i] for chunk in chunks]
        sizes = [len(part) for part in parts] if column.codec is Codec.LZ4 else []
        blocks.append(Blocks(b"".join(parts), np.array(sizes, dtype=np.int64)))
    spans = np.array(items, dtype=np.int64).reshape(-1, 2)
    return SampledBatch(
        keys=np.arange(1, len(items) + 1, dtype=np.uint64),
        probabilities=np.full(len(items), 0.1),
        first_rows=spans[:, 0],
        lengths=spans[:, 1],
        payloads=(),
        step_counts=np.array(counts, dtype=np.int64),
        params_versions=np.zeros(len(counts), dtype=np.uint64),
        blocks=tuple(blocks),
        table_items=len(items),
        total_weight=1.0,
        stored={},
    )


@contextmanager
def without_kernel() -> Iterator[None]:
    """Take the Python code instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "available", False)
        yield


def damaged(block: bytes, rng: np.random.Generator) -> bytes:
    """Return a block cut short, with a byte changed, with bytes behind it, of noise, or as it is."""
    match int(rng.integers(6)):
        case 0:
            return block[: int(rng.integers(len(block) + 1))]
        case 1:
            at = int(rng.integers(len(block)))
            return block[:at] + bytes([block[at] ^ (1 << int(rng.integers(8)))]) + block[at + 1 :]
        case 2:
            return block + bytes(int(rng.integers(1, 9)))
        case 3:
            return rng.bytes(len(block))
    return block
