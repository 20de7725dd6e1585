"""What policies remembered at the start of items, which travels with them as payload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STATE_DTYPE = np.dtype("<f4")
"""Of the numbers in a payload."""

RECURRENT_STATE = "recurrent_state"
"""Column of it in the batches of an agent that remembers, float32 [B, M]."""


def recurrent_states(payloads: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """Return the recurrent states of items, each of `size` numbers, [B, M]."""
    return np.frombuffer(b"".join(payloads), dtype=STATE_DTYPE).reshape(len(payloads), size).astype(np.float32)


def without_recurrent_state(payloads: Sequence[bytes], size: int) -> NDArray[np.bool_]:
    """Return which items [B] have another payload than a recurrent state of `size` numbers."""
    return np.array([len(payload) != size * STATE_DTYPE.itemsize for payload in payloads], dtype=np.bool_)
