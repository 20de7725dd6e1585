"""What servers take at most: each limit that is a setting is tried at its value and one beyond, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import params_service
from tests.support.params_service import METADATA
from tests.support.replay_messages import opening
from tests.support.replay_service import local_server, open_appender
from tests.support.replay_streams import make_chunk, make_config
from tests.support.waiting import WAIT_S
from tidemill.errors import InvalidArgument, NotFound, ResourceExhausted
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.replay import wire
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import MAX_COLUMNS
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel
from tidemill.rpc.status import translated

_BYTES = 4096


@pytest.mark.parametrize("beyond", [0, 1])
def test_request_of_as_many_bytes_as_a_server_takes(beyond: int) -> None:
    """`max_request_bytes`: the largest is read, and names no table; a larger one is refused by its size."""
    request = pb.DeleteItemsRequest(table="t" * 8, keys=range(500))
    request.table += "t" * (_BYTES + beyond - request.ByteSize())
    assert request.ByteSize() == _BYTES + beyond
    expected, message = (ResourceExhausted, "larger than max") if beyond else (NotFound, "ttt")
    with local_server(max_message_bytes=_BYTES) as server, open_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        with pytest.raises(expected, match=message), translated():
            stub.DeleteItems(request, timeout=WAIT_S)


def test_tables_of_a_server() -> None:
    """`replay.max_tables`: the last is made, one more is refused, and those there are go on."""
    with local_server(max_tables=2) as server, ReplayClient(server.address) as client:
        for name in ("a", "b"):
            client.create_table(make_config(name))
        with pytest.raises(ResourceExhausted, match="max_tables"):
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
            with pytest.raises(InvalidArgument, match="number of columns is 65"), translated():
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
                pytest.raises(ResourceExhausted, match="max_streams"),
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
            with pytest.raises(ResourceExhausted, match="size_bytes is 4097"):
                client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0)
            assert not client.list_versions().versions
        else:
            assert client.publish({Precision.FULL: blob}, METADATA, fencing_token=token, base_version=0) == 1
            assert (params := client.fetch()) is not None
            assert params.blob == blob
