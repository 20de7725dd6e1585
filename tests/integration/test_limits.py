"""What servers take at most: each limit that is a setting is tried at its value and one beyond, on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support import params_service
from tests.support.naming import because, naming
from tests.support.params_service import METADATA
from tests.support.replay_messages import opening
from tests.support.replay_service import local_server, open_appender
from tests.support.replay_streams import make_chunk, make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import ConfigError, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.replay import wire
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import MAX_COLUMNS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import open_channel
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.status import translated

_BYTES = 4096


@pytest.mark.parametrize("beyond", [0, 1])
def test_request_of_as_many_bytes_as_a_server_takes(beyond: int) -> None:
    """`max_request_bytes`: the largest is read, and names no table; a larger one is refused by its size."""
    request = pb.DeleteItemsRequest(table="t" * 8, keys=range(500))
    request.table += "t" * (_BYTES + beyond - request.ByteSize())
    assert request.ByteSize() == _BYTES + beyond
    expected, message = (InvalidArgument, "larger than max") if beyond else (NotFound, "ttt")
    with local_server(max_message_bytes=_BYTES) as server, open_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        with pytest.raises(expected, match=message), translated():
            stub.DeleteItems(request, timeout=WAIT_S)


def test_tables_of_a_server() -> None:
    """`replay.max_tables`: the last is made, one more is refused, and existing tables keep working."""
    with local_server(max_tables=2) as server, ReplayClient(server.address) as client:
        for name in ("a", "b"):
            client.create_table(make_config(name))
        with pytest.raises(ResourceExhausted, match="max_tables", check=because(Reason.TOO_MANY_TABLES)):
            client.create_table(make_config("c"))
        assert [table.config.name for table in client.list_tables()] == ["a", "b"]


@pytest.mark.parametrize("beyond", [0, 1])
def test_columns_of_a_table(beyond: int) -> None:
    """The contract has 64: one more is refused by the server, whatever the client checks."""
    config = wire.pack_config(make_config())
    del config.signature[:]
    config.signature.extend(
        pb.Column(name=f"c{i}", dtype="int8", codec=pb.CODEC_RAW) for i in range(MAX_COLUMNS + beyond)
    )
    with local_server() as server, open_channel(server.address) as channel:
        create = replay_pb2_grpc.ReplayServiceStub(channel).CreateTable
        if beyond:
            with pytest.raises(InvalidArgument, match=naming("65")), translated():
                create(pb.CreateTableRequest(config=config), timeout=WAIT_S)
        else:
            assert create(pb.CreateTableRequest(config=config), timeout=WAIT_S).created


def test_streams_of_a_server() -> None:
    """`replay.max_streams`: an actor may bring all of them; one more stream beside those is refused."""
    with local_server(max_streams=4) as server, ReplayClient(server.address) as client:
        client.create_table(make_config())
        with open_appender(server.address, "first", env_count=4) as first:
            assert first.append([make_chunk(0, 3, 0, 4)], [], timeout_s=WAIT_S)
            assert first.flush(WAIT_S)
            with (
                open_channel(server.address) as channel,
                pytest.raises(ResourceExhausted, match="max_streams", check=because(Reason.TOO_MANY_STREAMS)),
                translated(),
            ):
                list(replay_pb2_grpc.ReplayServiceStub(channel).Append(iter([opening("second")]), timeout=WAIT_S))
        assert server.replay.streams.count == 4


@pytest.mark.parametrize("beyond", [0, 1])
def test_parameters_of_as_many_bytes_as_a_server_takes(tmp_path: Path, beyond: int) -> None:
    """`paramserver.max_blob_bytes`: the largest is stored whole, a larger one not at all."""
    blob = bytes(_BYTES + beyond)
    with params_service.local_server(tmp_path, max_blob_bytes=_BYTES) as server, ParamsClient(server.address) as client:
        token = client.acquire_fencing_token("limits").fencing_token
        if beyond:
            with pytest.raises(ResourceExhausted, match=naming("size_bytes 4097"), check=because(Reason.TOO_LARGE)):
                client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0)
            assert not client.list_versions().versions
        else:
            assert client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0) == 1
            assert (params := client.fetch()) is not None
            assert params.blob == blob


@contextmanager
def _health_server(settings: ServerSettings) -> Iterator[str]:
    """Serve nothing but health with these settings; yield the address."""
    with BackgroundServer("limits", settings) as background:
        yield background.start()


def test_calls_of_a_connection() -> None:
    """`server.max_calls_per_connection`: one more is kept back until one ends; other connections are not."""
    with (
        _health_server(ServerSettings(max_calls_per_connection=2, grace_s=0.2)) as address,
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
        watches = [stub.Watch(request, timeout=WAIT_S) for _ in range(2)]
        for watch in watches:
            next(watch)
        one_more = stub.Check.future(request, timeout=WAIT_S)
        for _ in range(10):
            health_pb2_grpc.HealthStub(other).Check(request, timeout=WAIT_S)
        assert not one_more.done()
        watches[0].cancel()
        assert one_more.result(WAIT_S).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_connection_without_a_call() -> None:
    """`server.max_idle_s`: it is closed, one with a call is not, and the next call opens another."""
    with (
        _health_server(ServerSettings(max_idle_s=0.2, grace_s=0.2)) as address,
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as idle,
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as busy,
    ):
        request, states = health_pb2.HealthCheckRequest(), list[grpc.ChannelConnectivity]()
        watch = health_pb2_grpc.HealthStub(busy).Watch(request, timeout=WAIT_S)
        next(watch)
        idle.subscribe(states.append)
        stub = health_pb2_grpc.HealthStub(idle)

        def was_seen_to_end() -> bool:
            if {*states} - {grpc.ChannelConnectivity.IDLE}:
                return states[-1] == grpc.ChannelConnectivity.IDLE
            stub.Check(request, timeout=WAIT_S)  # again: a connection that was open too briefly is not reported
            return False

        wait_until(was_seen_to_end, "the connection's end")
        stub.Check(request, timeout=WAIT_S)
        assert watch.is_active()


@pytest.mark.parametrize(
    "make, most",
    [
        (lambda most: ServerSettings(max_message_bytes=most), 2**31 - 1),
        (lambda most: ServerSettings(max_calls_per_connection=most), 2**31 - 1),
        (lambda most: ServerSettings(max_idle_s=most), 2_147_483),
    ],
)
def test_limit_beyond_what_grpc_can_hold_is_refused(make: Callable[[int], ServerSettings], most: int) -> None:
    """Its arguments are of 32 bits; the largest that fits makes a server."""
    with _health_server(make(most)):
        pass
    with pytest.raises(ConfigError, match=naming("server", most + 1, most)):
        make(most + 1)


@pytest.mark.parametrize(
    "make", [lambda: ServerSettings(max_calls_per_connection=0), lambda: ServerSettings(max_idle_s=0)]
)
def test_limit_of_nothing_is_refused(make: Callable[[], ServerSettings]) -> None:
    """A server that may do nothing is a mistake."""
    with pytest.raises(ConfigError, match=naming("0")):
        make()
