"""Health probes of shards that do not wait for the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemill.rpc.channel import open_channel

_EVERY_S = 1.0
_DEADLINE_S = 2.0


@dataclass(slots=True)
class _Probe:
    """The newest probe to one shard."""

    channel: grpc.Channel
    address: str
    asked_s: float
    answer: grpc.Future[health_pb2.HealthCheckResponse] | None


class ShardProbe:
    """Keeps one probe underway to each shard that is watched. Used by one thread; `poll` never waits."""

    def __init__(self) -> None:
        """Ask nobody yet."""
        self._probes: dict[str, _Probe] = {}

    def poll(self, shards: Mapping[str, str], now_s: float) -> list[tuple[str, float, bool]]:
        """Collect the answers that have arrived, and send a probe to each shard (address by name) that is due.

        Returns:
            For each answer the shard, when it was asked, and whether it said that it serves.
        """
        answers = list(self._collect())
        self._forget(name for name, asked in self._probes.items() if shards.get(name) != asked.address)
        for name, address in shards.items():
            known = self._probes.get(name)
            if known is None or (known.answer is None and now_s - known.asked_s >= _EVERY_S):
                channel = known.channel if known else open_channel(address)
                self._probes[name] = _Probe(channel, address, now_s, _ask(channel))
        return answers

    def close(self) -> None:
        """End every probe."""
        self._forget(list(self._probes))

    def _collect(self) -> Iterator[tuple[str, float, bool]]:
        for name, probe in self._probes.items():
            if probe.answer is None or not probe.answer.done():
                continue
            answer, probe.answer = probe.answer, None
            try:
                serves = answer.result().status == health_pb2.HealthCheckResponse.SERVING
            except (grpc.RpcError, grpc.FutureCancelledError):
                serves = False
            yield name, probe.asked_s, serves

    def _forget(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._probes.pop(name).channel.close()


def _ask(channel: grpc.Channel) -> grpc.Future[health_pb2.HealthCheckResponse]:
    stub = health_pb2_grpc.HealthStub(channel)
    answer: grpc.Future[health_pb2.HealthCheckResponse] = stub.Check.future(
        health_pb2.HealthCheckRequest(), timeout=_DEADLINE_S
    )
    return answer
