"""Noise over the wire: the server answers in time and lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.replay_messages import MAX_MESSAGE_BYTES, data_with, opening
from tests.support.replay_service import LocalServer, local_server
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.wire import pack_config

METHODS = [
    "CreateTable",
    "DescribeTable",
    "UpdatePriorities",
    "DeleteItems",
    "UpdateTable",
    "DeleteMatchingItems",
    "Export",
    "Append",
    "Sample",
]


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[LocalServer]:
    """A server for noise alone, some of which may happen to mean something."""
    with local_server(MAX_MESSAGE_BYTES) as running, grpc.insecure_channel(running.address) as channel:
        request = pb.CreateTableRequest(config=pack_config(make_config()))
        replay_pb2_grpc.ReplayServiceStub(channel).CreateTable(request, timeout=WAIT_S)
        yield running


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(METHODS), noise=st.binary(max_size=200), cut=st.integers(0, 200))
def test_random_bytes_never_take_the_server_down(fuzzed: LocalServer, method: str, noise: bytes, cut: int) -> None:
    """Noise, and good messages with noise in the middle, end with a status in time, and the server continues."""
    good = data_with().SerializeToString()
    messages = [noise] if method != "Append" else [opening().SerializeToString(), good[:cut] + noise + good[cut:]]
    with grpc.insecure_channel(fuzzed.address) as channel:
        multi_callable: Any = channel.stream_stream(f"/tidemill.replay.v1.ReplayService/{method}")
        call = multi_callable(iter(messages), timeout=WAIT_S)
        with contextlib.suppress(grpc.RpcError):
            list(call)
        assert call.code() != grpc.StatusCode.DEADLINE_EXCEEDED
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        assert stub.DescribeTable(pb.DescribeTableRequest(name="t"), timeout=WAIT_S).table.items <= 100
