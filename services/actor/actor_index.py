"""The index of an actor among identical ones: as set, from its name in DNS, or drawn at random.

`socket.gethostbyaddr` asks /etc/hosts first, where an engine writes a container's id: the name that distinguishes
replicas has to be asked for (RFC 1035).
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import struct
import zlib
from pathlib import Path

import structlog

from tidemill.errors import ConfigError

_NUMBERED = re.compile(r"[-_](\d+)$")

_log = structlog.get_logger()


def actor_index(index: int | None, actor_id: str, dns_name: str = "") -> int:
    """Return the number of an actor: as set, or of its name in DNS, or one drawn from its name.

    Replicas of one container differ only in their names; without different numbers they would all play the same
    episodes.

    Args:
        index: As set; None if it was not.
        actor_id: Name of the actor.
        dns_name: What DNS calls its container, e.g. `run-actor-3.run_cluster`: Compose counts from 1.
    """
    if index is not None:
        return index
    if numbered := _NUMBERED.search(dns_name.partition(".")[0]):
        return max(int(numbered[1]) - 1, 0)
    if dns_name:
        _log.warning("container name has no number, using one computed from the actor's id", name=dns_name)
    return zlib.crc32(actor_id.encode())


_PORT = 53
_TIMEOUT_S = 2.0
_ATTEMPTS = 5
_PTR, _INTERNET = 12, 1
_RECURSION_DESIRED = 0x0100
_POINTER = 0xC0


def own_dns_name() -> str:
    """Return the name of this host's address, e.g. `tidemill-actor-3.tidemill_cluster`.

    Raises:
        ConfigError: DNS does not answer, or knows no name for it.
    """
    address = str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    lines = [line.split() for line in Path("/etc/resolv.conf").read_text(encoding="ascii").splitlines()]
    servers = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    name = ask_name(address, servers[0]) if servers else ""
    if not name:
        raise ConfigError(f"actor.index_from_dns is set, but DNS ({', '.join(servers)}) has no name for {address}")
    return name


def ask_name(address: str, server: str, port: int = _PORT) -> str:
    """Ask a DNS server for the name of an IP address; return nothing if it has none, or does not answer."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect((server, port))
        for _ in range(_ATTEMPTS):  # a datagram may be lost
            number = secrets.randbits(16)
            try:
                connection.send(_question(number, address))
                answer = connection.recv(4096)
            except OSError:
                continue
            if answer[:2] == struct.pack(">H", number):
                return _first_name(answer)
    return ""


def _question(number: int, address: str) -> bytes:
    header = struct.pack(">6H", number, _RECURSION_DESIRED, 1, 0, 0, 0)
    labels = ipaddress.ip_address(address).reverse_pointer.split(".")
    name = b"".join(bytes([len(label)]) + label.encode("ascii") for label in labels)
    return header + name + b"\0" + struct.pack(">2H", _PTR, _INTERNET)


def _first_name(answer: bytes) -> str:
    """Return the name in the first PTR record of an answer; nothing if there is none or it is malformed."""
    try:
        _, _, questions, answers, _, _ = struct.unpack_from(">6H", answer)
        place = 12
        for _ in range(questions):
            place = _read_name(answer, place)[1] + 4
        for _ in range(answers):
            place = _read_name(answer, place)[1]
            kind, _, _, length = struct.unpack_from(">2HIH", answer, place)
            place += 10
            if kind == _PTR:
                return _read_name(answer, place)[0]
            place += length
    except (struct.error, IndexError, UnicodeDecodeError):
        pass
    return ""


def _read_name(message: bytes, place: int) -> tuple[str, int]:
    """Return a name that may point back into the message, and the place after it."""
    labels: list[str] = []
    after = 0
    for _ in range(len(message)):  # a loop of pointers ends
        length = message[place]
        if length >= _POINTER:
            after = after or place + 2
            place = (length - _POINTER) << 8 | message[place + 1]
        elif length:
            labels.append(message[place + 1 : place + 1 + length].decode("ascii"))
            place += 1 + length
        else:
            return ".".join(labels), after or place + 1
    return "", place
