"""Recorder of an actor's traffic: a proxy between a real actor and a real replay service.

It passes every call on, and keeps each `Append` message with its time.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from benchmarks.actor import prepare
from benchmarks.learner_feed import START_S, process
from benchmarks.traffic_recording import APPEND, Recording
from tidemill.config.sections import RunConfig
from tidemill.replay.client import ReplayClient
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rpc.channel import open_channel
from tidemill.rpc.options import server_options
from tidemill.rpc.settings import ServerSettings


def record(config: RunConfig, path: str, seconds: float) -> Recording:
    """Return the messages of a real actor with random parameters, of some seconds from the first on."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        replay, params = f"unix://{folder}/r", f"unix://{folder}/p"
        own = ["--paramserver.server.address", params, "--run.root", folder]
        with (
            process(None, "tidemill.services.replay", path, "--replay.server.address", replay),
            process(None, "tidemill.services.paramserver", path, *own),
            ReplayClient(replay) as client,
            Proxy(replay) as proxy,
        ):
            client.wait_for_ready(START_S)
            prepare(config, client, params)
            places = ["--cluster.replay", proxy.address, "--cluster.params", params, "--actor.id", "recorded"]
            with process(None, "tidemill.services.actor", path, *places):
                return proxy.recording(seconds)


class Proxy(grpc.GenericRpcHandler):
    """Passes calls on to a replay service as they come; keeps what the first `Append` call sends."""

    def __init__(self, target: str) -> None:
        self._channel = open_channel(target)
        self._kept: list[tuple[float, bytes]] = []
        self._grown = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(8), [self], options=server_options(ServerSettings()))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of any method, whose messages are bytes."""
        method = str(handler_call_details.method)

        def pass_on(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            calls: Any = self._channel.stream_stream(method)
            call = calls(self._keep(requests) if method == APPEND else requests)
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError:
                context.abort(call.code(), call.details())

        return grpc.stream_stream_rpc_method_handler(pass_on)

    def recording(self, seconds: float) -> Recording:
        """Wait until there are messages of this many seconds; return them."""
        with self._grown:
            if not self._grown.wait_for(lambda: self._seconds() >= seconds, START_S + seconds):
                raise SystemExit(f"the actor sent {self._seconds():g} s of messages within {START_S + seconds:g} s")
            (_, opening), *kept = self._kept
        requests = [pb.AppendRequest.FromString(request) for _, request in kept]
        return Recording(pb.AppendRequest.FromString(opening), requests, [at_s - kept[0][0] for at_s, _ in kept])

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def _keep(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            with self._grown:
                self._kept.append((time.monotonic(), request))
                self._grown.notify_all()
            yield request

    def _seconds(self) -> float:
        return self._kept[-1][0] - self._kept[1][0] if len(self._kept) > 1 else 0.0  # the first message only opens
