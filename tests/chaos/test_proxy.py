"""The network that tests let fail does as asked: else the faults of `make chaos` would be none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

_BOUND_S = 60.0


@pytest.fixture
def received() -> bytearray:
    """What came to the server of the other fixture."""
    return bytearray()


@pytest.fixture
def proxy(received: bytearray) -> Iterator[Proxy]:
    """A proxy in front of a server that sends back what it receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    while data := connection.recv(4096):
                        received.extend(data)
                        connection.sendall(data)
                except ConnectionResetError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with Proxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            yield proxy
        thread.join(_BOUND_S)


def _connected(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=_BOUND_S)
    client.sendall(b"1")
    assert client.recv(1) == b"1"
    return client


def test_connection_is_reset_after_so_many_bytes(proxy: Proxy, received: bytearray) -> None:
    """In mid-message: what follows is not passed on, and the client learns of it by a reset."""
    with _connected(proxy) as client:
        proxy.cut_after(3)
        client.sendall(b"abcdef")
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    wait_until(lambda: bytes(received) == b"1abc", "the bytes before the cut come")
    assert not proxy.is_about_to_cut


def test_black_hole_passes_everything_once_it_has_ended(proxy: Proxy, received: bytearray) -> None:
    """In order and nothing twice, though not a byte came meanwhile."""
    with _connected(proxy) as client:
        with proxy.black_hole():
            client.sendall(b"abc")
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert received == b"1"
        client.settimeout(_BOUND_S)
        assert client.recv(3, socket.MSG_WAITALL) == b"abc"
    assert received == b"1abc"


def test_answers_are_lost_and_then_the_connection(proxy: Proxy, received: bytearray) -> None:
    """The server has what it was sent; the client hears nothing of it but a reset."""
    with _connected(proxy) as client:
        with proxy.without_answers():
            client.sendall(b"abc")
            wait_until(lambda: received == b"1abc", "the server has it")
        with pytest.raises(ConnectionResetError):
            client.recv(3)
