"""A digest of parameters, by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import DataLoss, NotFound
from tidemill.params.blob import unpack
from tidemill.params.stored import read_params


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


def describe_digest(folder: Path) -> str:
    """Return the digest of the newest parameters of a run and how many updates they have behind them, in words.

    Args:
        folder: The parameter server's, RUN/params. Its server may be running.

    Returns:
        An empty string if no version is there, or it has just been removed.
    """
    try:
        newest = read_params(folder)
    except (DataLoss, NotFound):
        return ""
    return f"{params_digest(unpack(newest.blob))} after {newest.version.metadata.learner_steps:,} updates"
