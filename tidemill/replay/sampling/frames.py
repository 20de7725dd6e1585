"""Messages between ranks of one machine: a header of JSON and arrays, over a Unix socket."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tidemill.errors import DataLoss, Unavailable
from tidemill.replay.batch import SampledBatch, StoredSteps
from tidemill.replay.columns import Per, columns_of

_SIZES: Final = struct.Struct("<II")  # of the header and of what follows it, in bytes
_MAX_BYTES: Final = 2**29
_AT_ONCE: Final = 2**20
_ARRAYS: Final = [
    column for column in (*columns_of(SampledBatch, Per.ITEM), *columns_of(SampledBatch, Per.CHUNK)) if column.dtype
]

_BYTES: Final = [column.name for column in columns_of(SampledBatch, Per.ITEM) if not column.dtype]

Header = dict[str, Any]


class FrameSocket:
    """One side of a connection. It is used by one thread at a time; `close` may come from any."""

    def __init__(self, connection: socket.socket, send_s: float) -> None:
        """Take a connected socket, this object's to close, and the longest that the other side may take nothing."""
        self._socket, self._send_s = connection, send_s
        self._received = bytearray()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message.

        Raises:
            Unavailable: The other side is gone or takes nothing.
        """
        text = json.dumps(header).encode()
        try:
            self._socket.settimeout(self._send_s)
            self._socket.sendall(_SIZES.pack(len(text), len(body)) + text + body)
        except OSError as error:
            raise _lost(error) from error

    def receive(self, timeout_s: float) -> tuple[Header, bytes] | None:
        """Return the next message, or None if it is not whole within `timeout_s`; what has come of it is kept.

        Raises:
            Unavailable: The other side is gone.
            DataLoss: The message is larger than any may be.
        """
        deadline = time.monotonic() + timeout_s
        while (found := self._whole()) is None:
            try:
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-4))
                data = self._socket.recv(_AT_ONCE)
            except TimeoutError:
                return None
            except OSError as error:
                raise _lost(error) from error
            if not data:
                raise Unavailable("the other rank has ended the connection")
            self._received += data
        return found

    def close(self) -> None:
        """End the connection and whatever waits for it. May be called twice."""
        with contextlib.suppress(OSError):  # the other side is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _whole(self) -> tuple[Header, bytes] | None:
        if len(self._received) < _SIZES.size:
            return None
        header, body = _SIZES.unpack_from(self._received)
        if header + body > _MAX_BYTES:
            raise DataLoss(f"a message of {header + body} bytes, at most {_MAX_BYTES} can be")
        end = _SIZES.size + header + body
        if len(self._received) < end:
            return None
        start = _SIZES.size + header
        parts = json.loads(self._received[_SIZES.size : start]), bytes(self._received[start:end])
        del self._received[:end]
        return parts


def pack_batch(batch: SampledBatch) -> tuple[Header, bytes]:
    """Return a batch that a mirror keeps as a message: everything but its rows."""
    stored = {name: (steps.store_id, steps.env_steps, steps.count_id) for name, steps in batch.stored.items()}
    arrays = {
        column.name: np.asarray(getattr(batch, column.name), f"<{column.dtype}")
        for column in _ARRAYS
        if getattr(batch, column.name) is not None
    }
    texts: dict[str, tuple[bytes, ...]] = {name: getattr(batch, name) for name in _BYTES}
    header = {
        "shapes": {name: array.shape for name, array in arrays.items()},
        "bytes": {name: [len(value) for value in values] for name, values in texts.items()},
        "table_items": batch.table_items,
        "total_weight": batch.total_weight,
        "limiter_diff": batch.limiter_diff,
        "received_at": batch.received_at,  # by a clock that all processes of a machine share
        "stored": stored,
    }
    return header, b"".join((*(array.tobytes() for array in arrays.values()), *itertools.chain(*texts.values())))


def unpack_batch(header: Header, body: bytes) -> SampledBatch:
    """Return the batch of a message.

    Raises:
        DataLoss: The message has another size than its header says.
    """
    shapes: dict[str, list[int]] = header["shapes"]
    sent = [column for column in _ARRAYS if column.name in shapes]
    counts = [math.prod(shapes[column.name]) for column in sent]
    sizes = (count * np.dtype(column.dtype).itemsize for column, count in zip(sent, counts, strict=True))
    lengths: dict[str, list[int]] = header["bytes"]
    if len(body) != sum(sizes) + sum(map(sum, lengths.values())):
        items, chunks = shapes["keys"][0], shapes["step_counts"][0]
        raise DataLoss(f"a batch of {items} items and {chunks} chunks in {len(body)} bytes")
    arrays: dict[str, Any] = {}
    start = 0
    for column, count in zip(sent, counts, strict=True):
        array = np.frombuffer(body, f"<{column.dtype}", count, start)
        arrays[column.name] = array.reshape(shapes[column.name])
        start += array.nbytes
    texts: dict[str, Any] = {}
    for name, sizes_of in lengths.items():
        ends = (start + np.cumsum(sizes_of, dtype=np.int64)).tolist()
        texts[name] = tuple(body[end - size : end] for end, size in zip(ends, sizes_of, strict=True))
        start += sum(sizes_of)
    return SampledBatch(
        **arrays,
        **texts,
        blocks=(),
        table_items=header["table_items"],
        total_weight=header["total_weight"],
        stored={name: StoredSteps(*steps) for name, steps in header["stored"].items()},
        limiter_diff=header["limiter_diff"],
        received_at=header["received_at"],
    )


def _lost(error: OSError) -> Unavailable:
    return Unavailable(f"the connection to the other rank is lost: {error}")
