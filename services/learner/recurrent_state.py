"""What policies remembered at the start of items, which travels with them as payload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import DataLoss

RECURRENT_STATE = "recurrent_state"
"""Column of it in the batches of an agent that remembers, float32 [B, M]."""


def recurrent_states(payloads: Sequence[bytes]) -> NDArray[np.float32]:
    """Return the recurrent_states of items, [B, M]; raises DataLoss if they differ in M."""
    size = len(payloads[0])
    if size % 4 or any(len(payload) != size for payload in payloads):
        sizes = sorted(set(map(len, payloads)))
        raise DataLoss(f"payloads have {sizes} bytes, must all have the same number of floats")
    return np.frombuffer(b"".join(payloads), dtype="<f4").reshape(len(payloads), -1).astype(np.float32)
