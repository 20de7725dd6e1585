"""Messages between an actor and the process of one of its environments, over a Unix socket: JSON, then arrays.

A message is the sizes of its two parts, an object, and the bytes of the arrays that the object describes one after the
other, little-endian and in C order.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.arrays import Array

Message = tuple[dict[str, Any], dict[str, Array]]

_SIZES = struct.Struct("<II")
_ARRAYS = "arrays"
_READ_BYTES = 2**20


def _plain(scalar: np.generic) -> Any:  # noqa: ANN401
    """Return the number of a NumPy scalar, which a user's batch may hold in its spec or its summaries."""
    return scalar.item()


class Link:
    """One end."""

    def __init__(self, connection: socket.socket) -> None:
        """Take a connected socket, which is closed with this."""
        self._socket, self._received = connection, bytearray()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, fields: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        """Send a message; raises OSError if the other end is gone."""
        described, body = [], b""
        for name, array in (arrays or {}).items():
            described.append([name, array.dtype.str, list(array.shape)])
            body += np.ascontiguousarray(array).tobytes()
        text = json.dumps({**fields, _ARRAYS: described}, default=_plain).encode()
        self._socket.sendall(_SIZES.pack(len(text), len(body)) + text + body)

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message; None if none is complete after `timeout_s`, None waiting for ever.

        Raises:
            EOFError: The other end is gone.
        """
        while (message := self._taken()) is None:
            if not self._poll.poll(None if timeout_s is None else 1000 * timeout_s):
                return None
            try:
                read = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise EOFError from error
            if not read:
                raise EOFError
            self._received += read
        return message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _taken(self) -> Message | None:
        received = self._received
        if len(received) < _SIZES.size:
            return None
        text_bytes, body_bytes = _SIZES.unpack_from(received)
        begin, end = _SIZES.size + text_bytes, _SIZES.size + text_bytes + body_bytes
        if len(received) < end:
            return None
        fields = json.loads(received[_SIZES.size : begin])
        arrays = {}
        for name, dtype, shape in fields.pop(_ARRAYS):
            size = math.prod(shape) * np.dtype(dtype).itemsize
            arrays[name] = np.frombuffer(received[begin : begin + size], dtype).reshape(shape)  # a slice is a copy
            begin += size
        del received[:end]
        return fields, arrays
