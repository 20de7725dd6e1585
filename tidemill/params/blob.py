"""Parameters as bytes: one safetensors file, never pickle."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument, ResourceExhausted
from tidemill.params.version import MAX_BLOB_BYTES, ParamsMetadata


def pack(
    state: Mapping[str, NDArray[np.generic]],
    metadata: ParamsMetadata | None = None,
    *,
    max_bytes: int = MAX_BLOB_BYTES,
) -> bytes:
    """Return named arrays as the bytes of a safetensors file.

    Args:
        state: Arrays by name, any numeric dtype and shape.
        metadata: What they are; written into the file's header as JSON, so that the file explains itself.
        max_bytes: Largest total size of the arrays, in bytes.

    Raises:
        ResourceExhausted: The arrays are larger than `max_bytes`.
        InvalidArgument: An array's dtype cannot be stored.
    """
    size_bytes = sum(array.nbytes for array in state.values())
    if size_bytes > max_bytes:
        raise ResourceExhausted(f"the parameters are {size_bytes} bytes, allowed: {max_bytes}")
    # One key, because safetensors writes several in random order, and equal parameters shall be equal bytes.
    described = {"params": json.dumps(dataclasses.asdict(metadata or ParamsMetadata()))}
    # safetensors stores an array's memory as it lies, so a transposed view must be made contiguous first.
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in state.items()}
    try:
        return bytes(safetensors.numpy.save(contiguous, described))
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise InvalidArgument(f"the parameters cannot be stored as safetensors: {error}") from error


def unpack(blob: bytes, *, max_bytes: int = MAX_BLOB_BYTES) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a safetensors file by name; the inverse of `pack`.

    Args:
        blob: The file's bytes. They hold the arrays uncompressed, so the arrays are at most as large as the blob.
        max_bytes: Largest blob memory is taken for, in bytes.

    Raises:
        ResourceExhausted: The blob is larger than `max_bytes`.
        InvalidArgument: The bytes are not a safetensors file.
    """
    if len(blob) > max_bytes:
        raise ResourceExhausted(f"the parameters are {len(blob)} bytes, allowed: {max_bytes}")
    try:
        return dict(safetensors.numpy.load(blob))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the parameters are not a safetensors file: {error}") from error


def half(state: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]] | None:
    """Return the arrays with float32 rounded to float16, or None when a value does not fit.

    Other dtypes stay as they are. float16 ends at 65504. Not a number and infinity do not fit either, so that
    broken parameters are never published for acting.
    """
    rounded: dict[str, NDArray[np.generic]] = {}
    for name, array in state.items():
        if array.dtype != np.float32:
            rounded[name] = array
            continue
        with np.errstate(over="ignore"):
            rounded[name] = array.astype(np.float16)
        if not np.isfinite(rounded[name]).all():
            return None
    return rounded
