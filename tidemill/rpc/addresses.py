"""Which texts are addresses of a server."""

from __future__ import annotations

import ipaddress
import re

LAST_PORT = 65535
SERVER = "host:port (an IPv6 address in brackets, a port up to 65535) or unix:///path"
"""What a server listens at, in words."""
CLIENT = "host:port (an IPv6 address in brackets, a port up to 65535), dns:///name:port or unix:///path"
"""What a client connects to, in words."""

_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")


def is_server_address(address: str) -> bool:
    """Return whether a server can listen at an address as it is written: `host:port` or `unix:///path`.

    A host is a name, an IPv4 address, or an IPv6 address in brackets. Whether there is such a host is not asked.
    """
    if address.startswith("unix:"):
        return len(address) > len("unix:")
    host, _, port = address.rpartition(":")
    return port.isascii() and port.isdigit() and int(port) <= LAST_PORT and _is_host(host)


def is_client_address(address: str) -> bool:
    """Return whether a client can connect to an address as it is written: also `dns:///name:port`, `ipv4:`, `ipv6:`."""
    scheme = next((each for each in _SCHEMES if address.startswith(each)), "")
    return is_server_address(address.removeprefix(scheme))


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
