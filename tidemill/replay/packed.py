"""Fields of a protobuf message written from NumPy arrays, without a Python object per number.

A batch has thousands of numbers: to make lists of them and give these to a message costs more than drawing the batch.
The bytes are those that the message would serialise to (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LENGTH_DELIMITED = 2
_GROUP_BITS, _GROUP = 7, 0x7F
_MORE, _LAST = np.uint8(0x80), np.uint8(0)


def varint(value: int) -> bytes:
    """Return a number from 0 on, seven bits per byte, the lowest first; all bytes but the last have the top bit."""
    found = bytearray()
    while value > _GROUP:
        found.append(value & _GROUP | 0x80)
        value >>= _GROUP_BITS
    found.append(value)
    return bytes(found)


def field(number: int, *parts: bytes) -> tuple[bytes, ...]:
    """Return a length-delimited field, as parts to be joined: bytes, a message, or packed numbers."""
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(sum(map(len, parts))), *parts


def fixed(number: int, values: NDArray[np.uint64] | NDArray[np.floating]) -> tuple[bytes, ...]:
    """Return a packed `repeated fixed64`, `double` or `float`; nothing if there are no values."""
    return field(number, values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()) if len(values) else ()


def varints(number: int, values: NDArray[np.int64] | NDArray[np.uint64]) -> tuple[bytes, ...]:
    """Return a packed `repeated uint32` or `uint64` of values that are not negative; nothing if there are none."""
    if not len(values):
        return ()
    highest = int(values.max())
    bytes_each = max(-(-highest.bit_length() // _GROUP_BITS), 1)
    if bytes_each == 1:
        return field(number, values.astype(np.uint8).tobytes())
    left: NDArray[np.unsignedinteger] = values.astype(np.uint32 if highest < 2**32 else np.uint64)
    groups = np.empty((len(left), bytes_each), dtype=np.uint8)
    is_written = np.empty(groups.shape, dtype=np.bool_)
    for place in range(bytes_each):
        is_written[:, place] = True if place == 0 else left > 0
        groups[:, place] = left & _GROUP
        left >>= _GROUP_BITS
        groups[:, place] |= np.where(left > 0, _MORE, _LAST)
    return field(number, groups[is_written].tobytes())
