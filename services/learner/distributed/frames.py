"""Messages between ranks of one machine: a header of JSON and arrays, over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import DataLoss, Unavailable
from tidemill.replay.sampling.batch import SampledBatch, StoredSteps

_SIZES: Final = struct.Struct("<II")  # of the header and of what follows it, in bytes
_MAX_BYTES: Final = 2**29
_AT_ONCE: Final = 2**20
_PER_ITEM: Final = {"probabilities": "f8", "first_rows": "i8", "lengths": "i8"}
_PER_CHUNK: Final = {"step_counts": "i8", "params_versions": "u8", "slots": "i8", "writes": "i8"}

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
    stored = {name: (steps.store_id, steps.env_steps) for name, steps in batch.stored.items()}
    header = {
        "keys": batch.keys.shape,
        "chunks": len(batch.step_counts),
        "payloads": [len(payload) for payload in batch.payloads],
        "table_items": batch.table_items,
        "total_weight": batch.total_weight,
        "limiter_diff": batch.limiter_diff,
        "stored": stored,
    }
    arrays = [batch.keys.astype("<u8")]
    arrays += [getattr(batch, name).astype(f"<{kind}") for name, kind in (_PER_ITEM | _PER_CHUNK).items()]
    return header, b"".join((*(array.tobytes() for array in arrays), *batch.payloads))


def unpack_batch(header: Header, body: bytes) -> SampledBatch:
    """Return the batch of a message.

    Raises:
        DataLoss: The message has another size than its header says.
    """
    items = int(header["keys"][0])
    counts = dict.fromkeys(_PER_ITEM, items) | dict.fromkeys(_PER_CHUNK, int(header["chunks"]))
    key_count = int(np.prod(header["keys"]))
    if len(body) != 8 * (key_count + sum(counts.values())) + sum(header["payloads"]):
        raise DataLoss(f"a batch of {items} items and {header['chunks']} chunks in {len(body)} bytes")
    keys: NDArray[np.uint64] = np.frombuffer(body, "<u8", key_count).reshape(header["keys"])
    arrays: dict[str, Any] = {}
    start = keys.nbytes
    for name, kind in (_PER_ITEM | _PER_CHUNK).items():
        arrays[name] = np.frombuffer(body, f"<{kind}", counts[name], start)
        start += arrays[name].nbytes
    ends = start + np.cumsum(header["payloads"], dtype=np.int64)
    return SampledBatch(
        keys=keys,
        payloads=tuple(body[end - size : end] for end, size in zip(ends.tolist(), header["payloads"], strict=True)),
        blocks=(),
        table_items=header["table_items"],
        total_weight=header["total_weight"],
        stored={name: StoredSteps(*steps) for name, steps in header["stored"].items()},
        limiter_diff=header["limiter_diff"],
        **arrays,
    )


def _lost(error: OSError) -> Unavailable:
    return Unavailable(f"the connection to the other rank is lost: {error}")
