"""Addresses of servers, as texts."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from urllib.parse import unquote

from tidemill.linux import LONGEST_SOCKET

LAST_PORT = 65535
_SOCKET = f"unix:///path of at most {LONGEST_SOCKET} bytes"
SERVER = f"host:port (an IPv6 address in brackets, a port up to 65535) or {_SOCKET}"
"""What a server listens at, in words."""
CLIENT = f"host:port (an IPv6 address in brackets, a port up to 65535), dns:///name:port or {_SOCKET}"
"""What a client connects to, in words."""

_EVERY = ("0.0.0.0", "::")
_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")


def is_server_address(address: str) -> bool:
    """True if a server can listen at an address of this form: `host:port` or `unix:///path`.

    A host is a name, an IPv4 address, or an IPv6 address in brackets. Whether there is such a host is not asked.
    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        return bool(path) and len(os.fsencode(path)) <= LONGEST_SOCKET
    host, _, port = address.rpartition(":")
    return port.isascii() and port.isdigit() and int(port) <= LAST_PORT and _is_host(host)


def is_client_address(address: str) -> bool:
    """True if a client can connect to an address of this form: also `dns:///name:port`, `ipv4:`, `ipv6:`."""
    scheme = next((each for each in _SCHEMES if address.startswith(each)), "")
    return is_server_address(address.removeprefix(scheme))


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of `host:port`, an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined(host: str, port: int | str) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_at(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Return the family and address of a TCP socket that listens at a host.

    Every address, `0.0.0.0` or `::`, means those of IPv4 and of IPv6 where the system has both, as gRPC takes it.

    Raises:
        OSError: There is no such host.
    """
    if host in _EVERY and socket.has_dualstack_ipv6():
        return socket.AF_INET6, "::"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return found[0][0], str(found[0][4][0])


def caller_of(peer: str) -> str:
    """Return the address of a machine that calls, without its port, or `unix`, given what gRPC names a peer."""
    scheme, _, address = unquote(peer).partition(":")
    return scheme if scheme == "unix" else address.rpartition(":")[0].strip("[]")


def can_listen(address: str) -> bool:
    """True if a server could listen at `host:port` now: the host is one of this machine's, and the port is free."""
    return why_not_free(address) is None


def why_not_free(address: str) -> OSError | None:
    """Return the error that a server would meet which listened at an address now; None if it could.

    At a Unix socket gRPC meets none: it takes the socket's place, and no client reaches the server that listens there.
    """
    if address.startswith("unix:"):
        return _why_not_free(address.removeprefix("unix:").removeprefix("//"))
    host, port = host_and_port(address)
    try:
        family, host = listening_at(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # as gRPC does: connections that an earlier server has left behind do not hold the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


def _why_not_free(path: str) -> OSError | None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # its queue of connections is full
            pass
        except OSError:  # none is there, or one that a killed server left
            return None
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        return _is_ip(host[1:-1].partition("%")[0], 6)
    if host.replace(".", "").isdigit():  # no name ends in a number, so it is an IPv4 address or nothing
        return _is_ip(host, 4)
    return _NAME.fullmatch(host) is not None


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False
