"""What policies remembered at the start of items, which travels with them as payload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MEMORY_DTYPE = np.dtype("<f4")
"""Of the numbers in a payload."""

MEMORY = "memory"
"""Column of it in the batches of an agent that remembers, float32 [B, M]."""


def memories(payloads: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """Return the memories of items, each of `size` numbers, [B, M]."""
    return np.frombuffer(b"".join(payloads), dtype=MEMORY_DTYPE).reshape(len(payloads), size).astype(np.float32)


def without_memory(payloads: Sequence[bytes], size: int) -> NDArray[np.bool_]:
    """Return which items [B] have another payload than a memory of `size` numbers."""
    return np.array([len(payload) != size * MEMORY_DTYPE.itemsize for payload in payloads], dtype=np.bool_)
