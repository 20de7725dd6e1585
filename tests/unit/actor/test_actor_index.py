"""The name that DNS has for an address, asked of a server on loopback."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemill.services.actor.actor_index import ask_name


@contextmanager
def dns_server(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Answer every datagram on a free port of loopback; yield the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while (received := server.recvfrom(4096))[0]:
                server.sendto(answer(received[0]), received[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", server.getsockname())
            thread.join()


def named(*records: tuple[int, bytes]) -> Callable[[bytes], bytes]:
    """Return a server that answers a question with records of a type and data, owned by a pointer to the question."""

    def answer(question: bytes) -> bytes:
        header = question[:2] + struct.pack(">5H", 0x8180, 1, len(records), 0, 0)
        owner = b"\xc0\x0c"
        parts = [owner + struct.pack(">2HIH", kind, 1, 600, len(data)) + data for kind, data in records]
        return header + question[12:] + b"".join(parts)

    return answer


def labels(*words: str) -> bytes:
    """Return a name as labels with their lengths, without its end."""
    return b"".join(bytes([len(word)]) + word.encode() for word in words)


def test_name_is_read_from_the_answer() -> None:
    """The PTR record's name is returned, whatever comes before it; the question names the address backwards."""
    asked: list[bytes] = []
    reply = named((5, labels("other") + b"\0"), (12, labels("run-actor-3", "run_cluster") + b"\0"))

    def answer(question: bytes) -> bytes:
        asked.append(question)
        return reply(question)

    with dns_server(answer) as port:
        assert ask_name("172.20.0.7", "127.0.0.1", port) == "run-actor-3.run_cluster"
    assert asked[0][12:] == labels("7", "0", "20", "172", "in-addr", "arpa") + b"\0\x00\x0c\x00\x01"


def test_name_of_an_ipv6_address_is_asked_for() -> None:
    """By its digits backwards, as in RFC 3596."""
    asked: list[bytes] = []
    reply = named((12, labels("run-actor-2", "run_cluster") + b"\0"))

    def answer(question: bytes) -> bytes:
        asked.append(question)
        return reply(question)

    with dns_server(answer) as port:
        assert ask_name("fd00::7", "127.0.0.1", port) == "run-actor-2.run_cluster"
    assert asked[0][12:].startswith(labels("7", *"0" * 27, *"00df", "ip6", "arpa"))


def test_compressed_name_is_followed() -> None:
    """A server may point to a name that the message has already: here the end of the question's."""
    place_of_arpa = 12 + len(labels("7", "0", "20", "172", "in-addr"))
    compressed = labels("run-actor-3") + struct.pack(">H", 0xC000 | place_of_arpa)
    with dns_server(named((12, compressed))) as port:
        assert ask_name("172.20.0.7", "127.0.0.1", port) == "run-actor-3.arpa"


@pytest.mark.parametrize(
    "answer",
    [
        named(),
        lambda question: question[:2] + b"\0",
        named((12, b"\x3fcut")),
        lambda question: question[:2] + struct.pack(">5H", 0x8180, 0, 1, 0, 0) + b"\xc0\x0c",
    ],
    ids=["no name", "cut header", "cut label", "pointer to itself"],
)
def test_answer_without_a_name_is_none(answer: Callable[[bytes], bytes]) -> None:
    """No name, or an answer that is cut off or points in circles: nothing is returned, and nothing hangs."""
    with dns_server(answer) as port:
        assert ask_name("172.20.0.7", "127.0.0.1", port) == ""
