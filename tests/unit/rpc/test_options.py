"""gRPC channel arguments that belong together."""

from __future__ import annotations

import pytest

from tidemill.rpc.options import Options, client_options, server_options
from tidemill.rpc.settings import ServerSettings


@pytest.mark.parametrize("options", [client_options(1), server_options(ServerSettings())], ids=["client", "server"])
def test_frozen_peer_is_noticed_within_ten_seconds(options: Options) -> None:
    """By a ping and the wait for its answer, whichever of the two bounds on it gRPC takes; also with no call open."""
    values = {name: int(value) for name, value in options if name != "grpc.service_config"}
    for answered_within in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        assert values["grpc.keepalive_time_ms"] + values[answered_within] <= 10_000
    assert values["grpc.keepalive_permit_without_calls"] == 1
    assert values["grpc.http2.max_pings_without_data"] == 0


def test_server_allows_as_many_pings_as_clients_send() -> None:
    """Otherwise it would disconnect an idle client."""
    least_ms = dict(server_options(ServerSettings()))["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(least_ms) < int(dict(client_options(1))["grpc.keepalive_time_ms"])
