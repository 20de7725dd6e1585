"""gRPC channel arguments, with the reason for each; measured on grpcio 1.85."""

from __future__ import annotations

import json

from tidemill.rpc.settings import ServerSettings

Options = list[tuple[str, int | str]]

_KEEPALIVE: Options = [
    # 5 s to the ping and 4 s for its answer: a frozen peer is noticed within 10 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    # Without this a frozen peer is noticed only after a minute: the transport's own ping limit applies.
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

_RETRIED_METHODS = {
    "tidemill.replay.v1.ReplayService": [
        "CreateTable",
        "ListTables",
        "DescribeTable",
        "UpdateTable",
        "ResetTable",
        "UpdatePriorities",
        "DeleteItems",
        "DeleteMatchingItems",
    ],
    "tidemill.params.v1.ParamService": ["AcquireFencingToken", "ListVersions", "SetTag"],
    "tidemill.learner.v1.LearnerService": ["GetStatus", "Pause", "Resume"],
    "grpc.health.v1.Health": ["Check"],
}
"""Reads and idempotent writes: a retry may run a handler twice when only the answer was lost."""


def _service_config() -> str:
    names = [
        {"service": service, "method": method} for service, methods in _RETRIED_METHODS.items() for method in methods
    ]
    policy = {
        "maxAttempts": 4,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def _size_limits(received_bytes: int, sent_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", received_bytes),
        ("grpc.max_send_message_length", sent_bytes),
    ]


def client_options(max_message_bytes: int) -> Options:
    """Return the arguments of a client channel."""
    return [
        *_KEEPALIVE,
        *_size_limits(max_message_bytes, max_message_bytes),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", _service_config()),
        # A service that restarts is found again within seconds, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # A container that is replaced has another address: its name is looked up again as soon, not in half a minute.
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
        # Loopback and cluster addresses are never behind a web proxy.
        ("grpc.enable_http_proxy", 0),
    ]


def server_options(settings: ServerSettings) -> Options:
    """Return the arguments of a server."""
    return [
        *_KEEPALIVE,
        *_size_limits(settings.request_limit_bytes, settings.max_message_bytes),
        ("grpc.max_concurrent_streams", settings.max_calls_per_connection),
        ("grpc.max_connection_idle_ms", int(1000 * settings.max_idle_s)),
        # Below the clients' interval, or the server would disconnect them for pinging too often.
        ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
        # Two servers would otherwise silently share one port.
        ("grpc.so_reuseport", 0),
    ]
