"""One sampler for the ranks of a machine: its owner deals batches to the others, which read the same mirror (ADR 0049).

The owner, which is the first rank of the machine, receives every batch and keeps its rows in memory that all of them
map. A batch goes whole to whichever rank asks next: each is a separate draw from the table, so that probabilities and
weights are those of a rank that samples for itself. Priorities and corrupt items go the other way, since the keys of a
sharded table belong to the sampler that gave them.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import errors, linux
from tidemill.arrays import Keys
from tidemill.errors import DataLoss, Reason, TidemillError, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.batch import SampledBatch
from tidemill.replay.limits import MAX_KEYS
from tidemill.replay.sampling.frames import FrameSocket, Header, pack_batch, unpack_batch
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.sampling.shared_arrays import SharedArrays
from tidemill.replay.sampling.source import SampleSource
from tidemill.types import Signature

CONNECTIONS = 2
"""Of each rank that has batches dealt to it: for batches, and for priorities, which must not wait for a batch."""

_POLL_S = 0.2
_LINGER_S = 3.0  # for the last priorities of the others when the owner ends
_ANSWER_S = 20.0  # to priorities: longer than the owner's own call may take
_HELLO_BYTES = 256

_ERRORS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TidemillError)
}

_log = LateLogger()


class SharedMirror:
    """A mirror in memory that this process shares, and the door where the others fetch it."""

    def __init__(self, name: str) -> None:
        """Open the door and reserve no memory yet.

        Args:
            name: Of the door, known to this run's ranks alone; nothing of it lies on a disk.

        Raises:
            OSError: The system has no such sockets, or no memory to share.
        """
        self.arrays = SharedArrays()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._door.bind(_address(name))
            self._door.listen(64)
        except OSError:
            self.close()
            raise

    def admit(self, mirror: TableMirror, ranks: int, timeout_s: float) -> list[FrameSocket]:
        """Hand the mirror to so many other ranks; return their connections. Nobody else is admitted then or later.

        Raises:
            Unavailable: They did not come in time.
        """
        self.arrays.seal()
        deadline, size = time.monotonic() + timeout_s, mirror.size
        hello = " ".join(map(str, (size.slots, size.slot_steps, size.hold, mirror.parts))).encode()
        admitted: list[FrameSocket] = []
        try:
            while len(admitted) < CONNECTIONS * ranks:
                self._door.settimeout(max(deadline - time.monotonic(), 1e-4))
                connection, _ = self._door.accept()
                if not _is_own(connection):
                    connection.close()
                    continue
                connection.settimeout(timeout_s)
                socket.send_fds(connection, [hello], [self.arrays.descriptor])
                admitted.append(FrameSocket(connection, timeout_s))
        except OSError as error:
            for frames in admitted:
                frames.close()
            what = f"{len(admitted)} of {CONNECTIONS * ranks} connections"
            raise Unavailable(f"the ranks of this machine did not fetch the mirror, {what}: {error}") from error
        return admitted

    def close(self) -> None:
        """Close the door and give up the descriptor; what was handed out stays. May be called twice."""
        self._door.close()
        self.arrays.close()


class SampleDealer:
    """Takes batches from the owner's sampler for the others; the owner takes its own from the sampler."""

    def __init__(self, sampler: SampleSource, ranks: Sequence[FrameSocket]) -> None:
        """Start a thread for each connection.

        Args:
            sampler: Where batches come from; closed with this.
            ranks: Connections of the others, which `SharedMirror.admit` returned; closed with this.
        """
        self._sampler, self._ranks, self._closed = sampler, ranks, threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"deal-{place}", daemon=True)
            for place, rank in enumerate(ranks)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Wait a little for the others to hang up, then end everything. May be called twice."""
        deadline = time.monotonic() + _LINGER_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._closed.set()
        for rank in self._ranks:
            rank.close()
        self._sampler.close()

    def _serve(self, rank: FrameSocket) -> None:
        try:
            while not self._closed.is_set():
                if (asked := rank.receive(_POLL_S)) is None:
                    continue
                try:
                    answer = self._answer(*asked)
                except TidemillError as error:
                    answer = {"error": type(error).__name__, "message": str(error), "reason": error.reason}, b""
                rank.send(answer[0] | {"number": asked[0]["number"]}, answer[1])
        except (Unavailable, DataLoss) as error:  # it has ended: as it should, or the group will notice
            _log.debug("a rank of this machine takes no more batches", reason=str(error))
        finally:
            rank.close()

    def _answer(self, header: Header, body: bytes) -> tuple[Header, bytes]:
        match header["ask"]:
            case "batch":
                while not self._closed.is_set():
                    if (batch := self._sampler.take(_POLL_S)) is not None:
                        return pack_batch(batch)
                raise Unavailable("the rank that samples for this machine has ended")
            case "update":
                keys, priorities = _unpack_update(header, body)
                self._sampler.update_priorities(keys, priorities, header["fencing_token"])
            case "delete":
                self._sampler.delete_items(_unpack_update(header, body)[0])
        return {}, b""


class DealtSampler:
    """The sampler of a rank whose machine's first rank samples for it. Every method may be called from any thread."""

    reconnects = priorities_dropped = unknown_keys = 0  # the owner counts them

    def __init__(self, batches: FrameSocket, updates: FrameSocket) -> None:
        """Take the connections, this object's to close."""
        self._batches, self._updates = _Asking(batches), _Asking(updates)

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if there is none in time.

        Raises:
            Unavailable: The owner is gone.
            TidemillError: What the owner's sampler raised.
        """
        answer = self._batches.ask({"ask": "batch"}, b"", timeout_s, resume=True)
        return None if answer is None else unpack_batch(*answer)

    def again(self) -> None:
        """Do nothing: no schedule is dealt."""

    def ask_smaller(self) -> None:
        """Do nothing: dealt batches are whole."""

    def update_priorities(
        self,
        keys: Keys,
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,  # noqa: ARG002 - the owner's call has its own
    ) -> None:
        """Set new priorities [N] of sampled items by key [N] or [N, 2], as `SampleStream` does.

        Raises:
            Unavailable: The owner is gone or silent.
            TidemillError: What the owner's sampler raised.
        """
        self._change({"ask": "update", "fencing_token": fencing_token}, keys, priorities)

    def delete_items(self, keys: Keys) -> None:
        """Remove sampled items by key [N] or [N, 2]; raises as `update_priorities` does."""
        self._change({"ask": "delete"}, keys, np.empty(0))

    def shards(self) -> tuple[ShardReport, ...]:
        """Return nothing: the owner reports."""
        return ()

    def close(self) -> None:
        """Hang up. May be called twice."""
        self._batches.close()
        self._updates.close()

    def _change(self, header: Header, keys: Keys, priorities: NDArray[np.float64]) -> None:
        body = keys.astype("<u8").tobytes() + priorities.astype("<f8").tobytes()
        if self._updates.ask(header | {"keys": keys.shape}, body, _ANSWER_S) is None:
            raise Unavailable(f"no answer of the rank that samples for this machine within {_ANSWER_S:g} s")


class _Asking:
    """Questions and answers over one connection, one at a time."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames, self._lock = frames, threading.Lock()
        self._number, self._is_open = 0, False

    def ask(
        self, header: Header, body: bytes, timeout_s: float, *, resume: bool = False
    ) -> tuple[Header, bytes] | None:
        """Return the answer; None if there is none in time: asked again with `resume`, the question still stands."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if not (resume and self._is_open):
                self._number += 1
                self._frames.send(header | {"number": self._number}, body)
                self._is_open = True
            while (found := self._frames.receive(max(deadline - time.monotonic(), 0.0))) is not None:
                if found[0]["number"] == self._number:  # or it is late, of a question that was given up
                    self._is_open = False
                    _raise_error(found[0])
                    return found
        return None

    def close(self) -> None:
        self._frames.close()


def fetch_mirror(name: str, signature: Signature, timeout_s: float) -> tuple[DealtSampler, TableMirror]:
    """Return the sampler and the mirror of another rank of this machine, whose door is open.

    Args:
        name: Of the door.
        signature: The table's columns.
        timeout_s: Longest wait for the owner, here and whenever something is sent, in seconds.

    Raises:
        Unavailable: The owner is gone.
        DataLoss: What it shares is not a mirror of this table.
    """
    connections: list[FrameSocket] = []
    arrays = None
    try:
        for _ in range(CONNECTIONS):
            frames, hello, descriptor = _enter(name, timeout_s)
            connections.append(frames)
            if arrays is None:
                arrays = SharedArrays(descriptor)
            else:
                os.close(descriptor)
        slots, slot_steps, hold, parts = map(int, hello.split())
        assert arrays is not None
        mirror = TableMirror(signature, MirrorSize(slots, slot_steps, hold), parts, arrays.reserve)
    except BaseException as error:
        for frames in connections:
            frames.close()
        if isinstance(error, OSError | ValueError):
            raise Unavailable(f"the mirror of this machine cannot be fetched: {error}") from error
        raise
    finally:
        if arrays is not None:
            arrays.close()
    return DealtSampler(*connections), mirror


def _enter(name: str, timeout_s: float) -> tuple[FrameSocket, bytes, int]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(_address(name))
        if not _is_own(connection):
            raise Unavailable("another user's process answers where the mirror is to be fetched")
        hello, descriptors, _, _ = socket.recv_fds(connection, _HELLO_BYTES, 1)
        if len(descriptors) != 1:
            raise Unavailable("the rank that keeps the mirror has ended")
    except BaseException:
        connection.close()
        raise
    return FrameSocket(connection, timeout_s), hello, descriptors[0]


def _address(name: str) -> bytes:
    return linux.abstract_address(f"tidemill-mirror-{name}")


def _is_own(connection: socket.socket) -> bool:
    return linux.peer_user(connection) == os.geteuid()


def _unpack_update(header: Header, body: bytes) -> tuple[Keys, NDArray[np.float64]]:
    items, *per_item = header["keys"]
    end = 8 * items * (per_item[0] if per_item else 1)
    if items > MAX_KEYS or len(body) not in (end, end + 8 * items):
        raise DataLoss(f"keys of shape {header['keys']} in {len(body)} bytes")
    return np.frombuffer(body[:end], "<u8").reshape(header["keys"]), np.frombuffer(body[end:], "<f8")


def _raise_error(header: dict[str, Any]) -> None:
    if "error" in header:
        reason = header["reason"]
        raise _ERRORS[header["error"]](header["message"], reason=None if reason is None else Reason(reason))
