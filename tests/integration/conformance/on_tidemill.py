"""The conformance tests' server on Tidemill."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from numpy.typing import NDArray

from tests.integration.conformance.adapter import Limiter, Sampled, Spec, TimedOut
from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S
from tidemill.errors import Unavailable
from tidemill.replay import (
    RateLimiterConfig,
    ReplayClient,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.replay.batch import SampledBatch
from tidemill.replay.codec import decode
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import unpack_sample

_STEP = {"value": 0, "action": 0}
_MOST_STEPS = 8
_FLUSH_S = 0.05


class TidemillServer:
    """One table of a server in this process; a sample is a call that grants as many batches of one as are asked for."""

    def __init__(self, spec: Spec) -> None:
        """Start it."""
        self._table = TableConfig(
            "t",
            signature_like(_STEP),
            _selector(spec.sampler, spec.exponent),
            max_items=spec.max_size,
            max_item_steps=_MOST_STEPS,
            remover=_selector(spec.remover, spec.exponent),
            rate_limiter=_limiter(spec.limiter),
            max_times_sampled=spec.max_times_sampled,
        )
        self._open = contextlib.ExitStack()
        server = self._open.enter_context(local_server())
        self._client = self._open.enter_context(ReplayClient(server.address))
        channel = self._open.enter_context(grpc.insecure_channel(server.address))
        self._stub = replay_pb2_grpc.ReplayServiceStub(channel)
        self._writer = ReplayWriter(server.address, self._table, chunk_length=1, max_in_flight_chunks=1024)
        self._last: Mapping[str, int] = {}

    def insert(self, value: int, priority: float = 1.0) -> None:
        """Send it; while the limiter holds it back its acknowledgement does not come."""
        self._writer.append({"value": value, "action": value})
        self._writer.create_item("t", last=1, priority=priority)
        with contextlib.suppress(Unavailable):
            self._writer.flush(_FLUSH_S)

    def sample(self, count: int = 1, timeout_s: float = 30.0) -> list[Sampled]:
        """Take so many batches of one item."""
        return [
            Sampled(
                int(self._columns(batch)["value"][-1]),
                int(batch.keys[0]),
                float(batch.probabilities[0]),
                int(batch.times_sampled[0]) if batch.times_sampled is not None else 0,
            )
            for batch in self._batches(count, timeout_s)
        ]

    def size(self) -> int:
        """Ask the server."""
        return self._client.describe_table("t").items

    def update(self, key: int, priority: float) -> None:
        """By key."""
        self._client.update_priorities("t", [key], [priority])

    def delete(self, key: int) -> None:
        """By key."""
        self._client.delete_items("t", [key])

    def reset(self) -> None:
        """By name."""
        self._client.reset_table("t")

    def insert_trajectory(self, steps: Sequence[Mapping[str, int]], last: Mapping[str, int]) -> None:
        """Make an item of as many steps as the longest column: of a shorter one the reader takes the end."""
        self._last = last
        for step in steps:
            self._writer.append(step)
        self._writer.create_item("t", last=max(last.values()))
        self._writer.flush(WAIT_S)

    def sample_trajectory(self) -> dict[str, NDArray[Any]]:
        """Of each column as many steps as were asked for."""
        (batch,) = self._batches(1, WAIT_S)
        columns = self._columns(batch)
        return {name: columns[name][-count:] for name, count in self._last.items()}

    def close(self) -> None:
        """End client and server; what the limiter still holds back is given up."""
        self._writer._appender.close()  # its own close waits for what cannot come
        self._open.close()

    def _batches(self, count: int, timeout_s: float) -> list[SampledBatch]:
        opening = pb.SampleOpen(table="t", batch_size=1, item_counts=True)
        answers = self._stub.Sample(iter([pb.SampleRequest(open=opening, credit=count)]), timeout=timeout_s)
        try:
            return [unpack_sample(answer) for answer in answers]
        except grpc.RpcError as error:
            raise TimedOut from error

    def _columns(self, batch: SampledBatch) -> dict[str, NDArray[Any]]:
        decoded = decode(self._table.signature, batch, int(batch.lengths[0]))
        return {name: rows[decoded.index[0]] for name, rows in decoded.columns.items()}


def _selector(name: str, exponent: float) -> SelectorConfig:
    kind = SelectorKind(name)
    return SelectorConfig(kind, exponent if kind is SelectorKind.PRIORITIZED else 0.0)


def _limiter(limiter: Limiter) -> RateLimiterConfig:
    if limiter.kind in ("queue", "stack"):
        return RateLimiterConfig(queue_size=limiter.size)
    return RateLimiterConfig(limiter.size, limiter.samples_per_insert, limiter.error_buffer)


def start(spec: Spec) -> TidemillServer:
    """Return a server with an empty table."""
    return TidemillServer(spec)
