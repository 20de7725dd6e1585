"""A digest of parameters, by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def params_digest(state: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256, in hex, of names, dtypes, shapes and values; equal only if every bit is.

    What else is stored with parameters, such as their version, has no part in it.

    Args:
        state: Arrays by name, as `unpack` returns them; their order does not matter.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        array = np.ascontiguousarray(state[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
