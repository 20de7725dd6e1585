"""Reads restored chunks into memory, the newest first, as far as the budget goes, and leaves damaged ones out."""

from __future__ import annotations

import numpy as np

from tidemill.services.replay.blob_files import BlobFiles
from tidemill.services.replay.chunk_store import ChunkStore
from tidemill.services.replay.log_blocks import LogBlocks
from tidemill.services.replay.memory_budget import MemoryBudget
from tidemill.services.replay.replay import Replay

_BATCH = 1024


def warm_up(replay: Replay, files: BlobFiles, budget: MemoryBudget) -> int:
    """Fill memory with blobs; return how many items were dropped because a chunk of theirs is damaged.

    Chunks beyond the budget are checked when they are first read.
    """
    damaged = [(store, chunk) for store in replay.stores for chunk in _read_newest(store, files, budget)]
    return sum(replay.drop_chunk(store, chunk) for store, chunk in damaged)


def _read_newest(store: ChunkStore, files: BlobFiles, budget: MemoryBudget) -> list[int]:
    """Read what fits; return the damaged chunks."""
    blocks = store.blocks
    assert isinstance(blocks, LogBlocks), "a log keeps the blocks"
    slots = store.held()
    newest_first = slots[np.argsort(-blocks.ids[slots], kind="stable")]
    sizes = np.cumsum(blocks.locations(newest_first).sizes)
    fitting = newest_first[: int(np.searchsorted(sizes, budget.room_bytes, side="right"))]
    damaged = []
    for start in range(0, len(fitting), _BATCH):
        batch = fitting[start : start + _BATCH]
        for slot, blob in zip(batch.tolist(), files.read(blocks.locations(batch)), strict=True):
            if blob is None:
                damaged.append(slot)
            else:
                blocks.warm(slot, blob)
    blocks.may_cool(fitting)
    return damaged
