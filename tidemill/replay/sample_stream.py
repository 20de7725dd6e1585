"""The sampling side of the replay client: a stream of batches with bounded prefetch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc

from tidemill.replay import wire
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.mirror import TableMirror
from tidemill.replay.reconnect import ReconnectLoop
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.backoff import Backoff
from tidemill.rpc.channel import open_channel

_POLL_S = 0.2
"""How soon an iterating thread notices that it shall stop."""


class SampleStream(Iterator[SampledBatch]):
    """Batches of one table, received ahead of their use.

    At most `max_in_flight_batches` are under way or waiting at any time. A background thread holds the connection; when
    it breaks it reconnects with backoff, creates the table again if the server lost it, and continues: batches that
    were under way are lost and count as sampled. Any number of threads may iterate; each batch goes to one of them.

    Errors that a retry cannot cure (the table exists with another configuration) are raised by `next`.
    """

    def __init__(
        self,
        address: str,
        table: TableConfig,
        batch_size: int,
        *,
        max_in_flight_batches: int = 4,
        without_replacement: bool = False,
        mirror: TableMirror | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Start connecting in the background; creates the table if it does not exist.

        Args:
            address: Address of the replay service.
            table: The table to sample; created, or confirmed, on every connection.
            batch_size: Items in each batch, 1 .. 65536.
            max_in_flight_batches: Batches that may be underway or waiting, at least 1.
            without_replacement: Whether no item may come twice in a batch.
            mirror: Keeps the rows that come, for this stream alone; batches are then without blocks.
            stop: Ends the iteration when set.
        """
        self._table, self._max_in_flight, self._stop = table, max_in_flight_batches, stop or threading.Event()
        self._mirror = mirror
        self._open = pb.SampleOpen(
            table=table.name,
            batch_size=batch_size,
            without_replacement=without_replacement,
            mirror=mirror.size.to_message() if mirror is not None else None,
        )
        self._changed = threading.Condition()  # guards everything below
        self._ready: deque[SampledBatch] = deque()
        self._to_grant = 0  # credit for batches taken since the last grant
        self._call_number = 0  # a request generator of an older call ends
        self._call: grpc.Call | None = None
        self._connected = False
        self._calls = 0  # opened so far
        self._waited_s = 0.0
        self._error: BaseException | None = None
        self._client = ReplayClient(address)
        self._channel = open_channel(address)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._connection = ReconnectLoop(f"sample-{table.name}", address, self._run_stream, self._fail)
        self._connection.start()

    def __next__(self) -> SampledBatch:
        """Return the next batch, waiting as long as it takes.

        Raises:
            StopIteration: the stream was closed, or `stop` was set.
            TidemillError: the server refused for good.
        """
        while not self._is_over():
            batch = self.take(_POLL_S)
            if batch is not None:
                return batch
        raise StopIteration

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed.

        Raises:
            TidemillError: the server refused for good.
        """
        started = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._is_over(), timeout_s)
            self._waited_s += time.monotonic() - started
            if self._error is not None:
                raise self._error
            if not self._ready or self._is_over():
                return None
            batch = self._ready.popleft()
            self._to_grant += 1
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """End the call and the thread; waiting threads get StopIteration. May be called twice."""
        with self._changed:
            self._call_number += 1
            self._connection.closed.set()
            if self._call is not None:
                self._call.cancel()
            self._changed.notify_all()
        self._connection.close()
        self._client.close()
        self._channel.close()

    @property
    def waited_s(self) -> float:
        """Seconds callers have waited for batches so far, all threads together."""
        return self._waited_s

    @property
    def connected(self) -> bool:
        """Whether the present connection has delivered or may deliver batches."""
        return self._connected

    @property
    def reconnects(self) -> int:
        """How often the stream was lost and opened again."""
        return max(self._calls - 1, 0)

    def _is_over(self) -> bool:
        return self._connection.closed.is_set() or self._stop.is_set()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _run_stream(self, backoff: Backoff) -> None:
        """Hold one call: confirm the table, grant credit, receive batches until the call ends."""
        self._client.create_table(self._table)
        with self._changed:
            self._call_number += 1
            self._to_grant = self._max_in_flight - len(
                self._ready
            )  # 0 if none was taken: then the call opens with the next
            if self._connection.closed.is_set():
                return
            call = self._call = self._stub.Sample(self._requests(self._call_number))
            self._connected = True
            self._calls += 1
        backoff.reset()
        try:
            for response in call:
                batch = wire.unpack_sample(response, mirrored=self._mirror is not None)
                if self._mirror is not None:
                    batch = self._mirror.keep(batch)
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._call, self._connected = None, False
                self._call_number += 1
                self._changed.notify_all()
            call.cancel()

    def _requests(self, number: int) -> Iterator[pb.SampleRequest]:
        """Yield the messages of one call, in gRPC's own thread."""
        opening: pb.SampleOpen | None = self._open
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._call_number != number or self._to_grant > 0)
                if self._call_number != number:
                    return
                credit, self._to_grant = self._to_grant, 0
            yield pb.SampleRequest(open=opening, credit=credit)
            opening = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()
