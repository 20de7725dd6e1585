"""The conversation of a sampler with one shard: draws out, answers in, in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Protocol

import grpc

from tidemill.replay.client import ReplayClient
from tidemill.replay.mirror import MirrorSize
from tidemill.replay.reconnect import ReconnectLoop
from tidemill.replay.shards.table import ShardRequest
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.backoff import Backoff
from tidemill.rpc.channel import open_channel

_DEADLINE_S = 5.0


class StreamOwner(Protocol):
    """Whom a stream tells what happens; called in the stream's thread."""

    def opened(self, stream: ShardStream, created: bool) -> None:
        """A conversation begins, with a table that was there, or was created now and is empty."""

    def answered(self, stream: ShardStream, answer: pb.SampleResponse) -> None:
        """The oldest draw that was not answered is."""

    def lost(self, stream: ShardStream) -> None:
        """The conversation is over; what was not answered never will be."""

    def failed(self, error: BaseException) -> None:
        """Something happened that trying again does not cure; there will be no other conversation."""


class ShardStream:
    """Holds one conversation after the other with a shard; creates the table in each if it is not there.

    A background thread talks; `send` and `cut` never block.
    """

    def __init__(
        self,
        shard: str,
        address: str,
        table: TableConfig,
        batch_size: int,
        without_replacement: bool,
        owner: StreamOwner,
        mirror: MirrorSize | None = None,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            shard: Name of the shard.
            address: Its address.
            table: Its part of the table.
            batch_size: Most items of a draw.
            without_replacement: Whether no item may come twice in a draw.
            owner: Told what happens.
            mirror: What of its part the owner keeps; None if nothing.
        """
        self.shard, self._table, self._owner = shard, table, owner
        self._open = pb.SampleOpen(
            table=table.name,
            batch_size=batch_size,
            without_replacement=without_replacement,
            mirror=mirror.to_message() if mirror is not None else None,
        )
        self.client = ReplayClient(address, deadline_s=_DEADLINE_S)
        self._channel = open_channel(address)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._lock = threading.Lock()  # guards the two below
        self._call: grpc.Call | None = None
        self._requests: queue.SimpleQueue[pb.SampleRequest | None] = queue.SimpleQueue()
        self._connection = ReconnectLoop(f"shard-{shard}", address, self._run_stream, owner.failed)

    def start(self) -> None:
        """Start the thread."""
        self._connection.start()

    def send(self, draw: ShardRequest) -> None:
        """Ask for a draw; the owner counts what is not answered and keeps it bounded."""
        self._requests.put(pb.SampleRequest(draws=[pb.Draw(items=draw.items, counted=draw.counted)]))

    def cut(self) -> None:
        """End the present conversation, because the shard is silent; another is begun."""
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def close(self) -> None:
        """End the conversation and the thread, within a bounded time. May be called twice."""
        self._connection.closed.set()
        self.cut()
        self.client.close()  # ends the calls that the thread may be waiting for
        self._channel.close()
        self._connection.close()

    def _run_stream(self, backoff: Backoff) -> None:
        created = self.client.create_table(self._table)
        with self._lock:
            if self._connection.closed.is_set():
                return
            requests = self._requests = queue.SimpleQueue()
            call = self._call = self._stub.Sample(self._messages(requests))
        self._owner.opened(self, created)
        try:
            for answer in call:
                backoff.reset()
                self._owner.answered(self, answer)
        finally:
            with self._lock:
                self._call = None
            requests.put(None)
            call.cancel()
            self._owner.lost(self)

    def _messages(self, requests: queue.SimpleQueue[pb.SampleRequest | None]) -> Iterator[pb.SampleRequest]:
        """Yield the messages of one conversation, in gRPC's own thread."""
        opening: pb.SampleOpen | None = self._open
        while (request := requests.get()) is not None:
            if opening is not None:
                request.open.CopyFrom(opening)
                opening = None
            yield request
