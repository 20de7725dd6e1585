"""A name that leads to another address, as when a container is replaced, is looked up again within seconds."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.waiting import wait_until
from tidemill.rpc.options import client_options

_NAME = "learner.test"
_MESSAGE_BYTES = 2**20
_A, _IN = 1, 1


class NameServer:
    """Answers every question for an IPv4 address with the one that it was told last (RFC 1035)."""

    def __init__(self, address: str) -> None:
        """Listen on loopback."""
        self.address, self.asked = address, 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            request, asker = self._socket.recvfrom(512)
            if not request:
                return
            question_end = request.index(b"\0", 12) + 5  # the name, its type and class
            question = request[12:question_end]
            is_address = struct.unpack("!HH", question[-4:]) == (_A, _IN)
            self.asked += is_address
            header = request[:2] + struct.pack("!HHHHH", 0x8180, 1, int(is_address), 0, 0)
            name_before, lives_s = 0xC00C, 0
            answer = struct.pack("!HHHIH", name_before, _A, _IN, lives_s, 4) + ipaddress.ip_address(self.address).packed
            self._socket.sendto(header + question + (answer if is_address else b""), asker)


@contextlib.contextmanager
def _serving(address: str, port: int = 0) -> Iterator[int]:
    """Serve the health service on an address; yield its port."""
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        port = server.add_insecure_port(f"{address}:{port}")
        server.start()
        yield port
        server.stop(0).wait(10)


def test_client_follows_a_name_to_another_address() -> None:
    """It asks for the name again within seconds of losing the first; gRPC would by itself after half a minute."""
    with contextlib.closing(NameServer("127.0.0.1")) as names, contextlib.ExitStack() as channels:

        def answers() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status)
            return False

        with _serving("127.0.0.1") as port:
            target = f"dns://127.0.0.1:{names.port}/{_NAME}:{port}"
            channel = channels.enter_context(grpc.insecure_channel(target, options=client_options(_MESSAGE_BYTES)))
            stub = health_pb2_grpc.HealthStub(channel)
            wait_until(answers, "an answer")
        names.address = "127.0.0.2"
        with _serving("127.0.0.2", port):
            wait_until(answers, "an answer from the other address", timeout_s=15)
    assert names.asked > 1
