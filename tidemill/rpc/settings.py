"""Settings that every gRPC server of the cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import ConfigError
from tidemill.rpc.addresses import SERVER, is_server_address

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class ServerSettings:
    """Where a service listens and what it accepts."""

    address: str = "127.0.0.1:0"
    """gRPC address, `host:port` or `unix:///path`; port 0 takes a free one."""
    metrics_address: str = "127.0.0.1:0"
    """Where Prometheus scrapes /metrics, `host:port`; empty turns it off."""
    insecure: bool = False
    """Allow an address beyond this machine without TLS and tokens: whoever reaches it controls the run."""
    metrics_insecure: bool = False
    """Allow a metrics address beyond this machine; metrics and health are served in plaintext to whoever asks."""
    tls_cert: str = ""
    """PEM file with the server's certificate, and any between it and the CA; read again when it changes."""
    tls_key: str = ""
    """PEM file with its private key, which other users must not be able to read."""
    tls_client_ca: str = ""
    """PEM file with the CA of clients; if set, a client has to show a certificate of it as well."""
    tokens: str = ""
    """File with a line `ROLE TOKEN` for each token that is accepted; read again when it changes."""
    max_message_bytes: int = 64 * MEBIBYTE
    """Largest gRPC message accepted or sent, in bytes."""
    max_request_bytes: int = 0
    """Largest gRPC message accepted, if less, in bytes; nothing else is done while one is read; 0 means no less."""
    max_calls_per_connection: int = 1024
    """Calls in progress per connection; its client keeps further ones back until one ends."""
    max_idle_s: float = 3600.0
    """How long a connection without a call may stay, in seconds; its client opens another when it needs one."""
    grace_s: float = 5.0
    """How long calls in progress may continue after SIGTERM, in seconds."""

    def __post_init__(self) -> None:
        if not is_server_address(self.address):
            raise ConfigError(f"server.address is {self.address!r}, allowed: {SERVER}")
        metrics = self.metrics_address
        if metrics and (metrics.startswith("unix:") or not is_server_address(metrics)):
            raise ConfigError(f"server.metrics_address is {metrics!r}, allowed: host:port, or nothing to turn it off")
        for name in ("max_calls_per_connection", "max_idle_s"):
            if (value := getattr(self, name)) <= 0:
                raise ConfigError(f"{name} is {value!r}, but must be positive")

    @property
    def request_limit_bytes(self) -> int:
        """Largest gRPC message accepted, in bytes."""
        return min(self.max_message_bytes, self.max_request_bytes or self.max_message_bytes)
