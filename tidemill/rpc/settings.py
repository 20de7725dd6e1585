"""Settings that every gRPC server of the cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import ConfigError
from tidemill.rpc.addresses import SERVER, is_server_address
from tidemill.settings.check import check, check_at_least, check_between

MEBIBYTE = 1024 * 1024

GRPC_MOST = 2**31 - 1
"""Largest number that a channel argument of gRPC holds."""


@dataclass(frozen=True)
class ServerSettings:
    """Address of a service, access to it, and its limits."""

    address: str = "127.0.0.1:0"
    """gRPC address, `host:port` or `unix:///path`. Port 0 picks a free port."""
    metrics_address: str = "127.0.0.1:0"
    """Address of `/metrics` for Prometheus, `host:port`. Empty disables it."""
    insecure: bool = False
    """Allow an address beyond this machine without TLS and tokens. Anyone who reaches it controls the run."""
    metrics_insecure: bool = False
    """Allow a metrics address beyond this machine. Anyone who reaches it can read metrics, health and the last lines of
    the log, unencrypted."""
    tls_cert: str = ""
    """PEM file with the server's certificate, followed by any intermediate ones. It is read again when it changes.
    Empty: no TLS."""
    tls_key: str = ""
    """PEM file with the certificate's private key. Other users must not be able to read it."""
    tls_client_ca: str = ""
    """PEM file with the CA of client certificates. Clients must then present a certificate. Empty: they need none."""
    tokens: str = ""
    """File with a line `ROLE TOKEN` for each accepted token. It is read again when it changes. Empty: no tokens."""
    max_message_bytes: int = 64 * MEBIBYTE
    """Largest gRPC message accepted or sent, in bytes."""
    max_request_bytes: int = 0
    """Largest gRPC message accepted, in bytes, if less than `max_message_bytes`. A server handles nothing else while it
    receives a message. 0: `max_message_bytes`."""
    max_calls_per_connection: int = 1024
    """Maximum number of calls in progress per connection, at least 1. A client delays further calls until one ends."""
    max_idle_s: float = 3600.0
    """Seconds after which a connection without calls is closed. Clients reconnect when they need to."""
    grace_s: float = 5.0
    """Seconds for which calls in progress may continue after SIGTERM."""

    def __post_init__(self) -> None:
        if not is_server_address(self.address):
            raise ConfigError(f"server.address is {self.address!r}, allowed: {SERVER}")
        metrics = self.metrics_address
        if metrics and (metrics.startswith("unix:") or not is_server_address(metrics)):
            raise ConfigError(f"server.metrics_address is {metrics!r}, allowed: host:port, or nothing to turn it off")
        check_between(1, GRPC_MOST, "server", self, "max_message_bytes", "max_calls_per_connection")
        longest_s = GRPC_MOST // 1000
        check(0 < self.max_idle_s <= longest_s, "server.max_idle_s", self.max_idle_s, f"more than 0, up to {longest_s}")
        check_at_least(0, "server", self, "max_request_bytes", "grace_s")

    @property
    def request_limit_bytes(self) -> int:
        """Largest gRPC message accepted, in bytes."""
        return min(self.max_message_bytes, self.max_request_bytes or self.max_message_bytes)
