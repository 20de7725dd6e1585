"""Publishing to the parameter server over gRPC: who may, what is refused, and what a publisher leaves that goes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import because
from tests.support.params_service import LARGE, LIMIT_BYTES, METADATA, MIB, LocalServer, local_server, publish
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    TidemillError,
    Unavailable,
)
from tidemill.params.client import ParamsClient
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import Precision
from tidemill.rpc.channel import open_channel
from tidemill.rpc.status import translated


def _header(*blobs: bytes, fencing_token: int = 1, base_version: int = 0, **change: object) -> pb.PublishRequest:
    encodings = [
        pb.Encoding(
            **{"precision": i + 1, "size_bytes": len(blob), "sha256": hashlib.sha256(blob).digest()} | change  # type: ignore[arg-type]
        )
        for i, blob in enumerate(blobs)
    ]
    header = pb.PublishHeader(fencing_token=fencing_token, base_version=base_version, encodings=encodings)
    return pb.PublishRequest(header=header)


def _piece(data: bytes) -> pb.PublishRequest:
    return pb.PublishRequest(piece=data)


def test_older_publisher_is_refused(client: ParamsClient, server: LocalServer) -> None:
    """A second publisher takes over; the first stores nothing more."""
    first = client.acquire_fencing_token("first")
    client.publish({Precision.FULL: b"1"}, METADATA, fencing_token=first.fencing_token, base_version=0)
    second = client.acquire_fencing_token("second")
    assert second.latest_version == 1
    with pytest.raises(FailedPrecondition, match="superseded", check=because(Reason.FENCING_TOKEN_SUPERSEDED)):
        client.publish({Precision.FULL: b"2"}, METADATA, fencing_token=first.fencing_token, base_version=1)
    client.publish({Precision.FULL: b"3"}, METADATA, fencing_token=second.fencing_token, base_version=1)
    assert [version.fencing_token for version in client.list_versions().versions] == [1, 2]
    assert server.metric("stale_publishes_total") == 1


def test_repeated_publish_stores_once(client: ParamsClient) -> None:
    """A retry whose answer was lost is answered with the same number, without a second copy."""
    opened = client.acquire_fencing_token("test")
    for _ in range(3):
        blobs = {Precision.FULL: LARGE}
        assert client.publish(blobs, METADATA, fencing_token=opened.fencing_token, base_version=0) == 1
    assert len(client.list_versions().versions) == 1


_BAD_PUBLISHES = [
    ([], InvalidArgument, "must be its header"),
    ([_piece(b"x")], InvalidArgument, "must be its header"),
    ([_header()], InvalidArgument, "encodings"),
    ([_header(b"ab")], InvalidArgument, "hold 0 bytes, declared: 2"),
    ([_header(b"ab"), _piece(b"a")], InvalidArgument, "hold 1 bytes, declared: 2"),
    ([_header(b"ab"), _piece(b"abc")], InvalidArgument, "at least 3 bytes, declared: 2"),
    ([_header(b"ab"), _piece(b"ab"), _piece(b"")], InvalidArgument, "piece has 0 bytes"),
    ([_header(b"ab"), _piece(b"aB")], DataLoss, "does not match its SHA-256"),
    ([_header(b"full", b"half"), _piece(b"Fullhalf")], DataLoss, "does not match its SHA-256"),
    ([_header(b"ab"), _header(b"ab")], InvalidArgument, "only pieces"),
    ([_header(b"ab"), pb.PublishRequest()], InvalidArgument, "only pieces"),
    ([_header(LARGE), _piece(LARGE[: MIB + 1])], InvalidArgument, f"piece has {MIB + 1} bytes"),
    ([_header(b"ab", size_bytes=LIMIT_BYTES + 1)], ResourceExhausted, "size_bytes is 4194305"),
    ([_header(b"ab", size_bytes=2**63)], ResourceExhausted, "size_bytes is"),
    ([_header(b"ab", sha256=b"short")], InvalidArgument, "sha256 is 5"),
    ([_header(b"ab", precision=7)], InvalidArgument, "precision is 7"),
    ([_header(b"ab", precision=0)], InvalidArgument, "precision is 0"),
    ([_header(b"ab", precision=2)], InvalidArgument, "full precision first"),
    ([_header(b"ab", fencing_token=9)], InvalidArgument, "fencing_token is 9"),
    ([_header(b"ab", base_version=3)], FailedPrecondition, "base_version is 3"),
]


@pytest.mark.parametrize("messages, error, reason", _BAD_PUBLISHES)
def test_malformed_publish_leaves_nothing_and_the_server_lives(
    client: ParamsClient,
    stub: params_pb2_grpc.ParamServiceStub,
    tmp_path: Path,
    messages: Sequence[pb.PublishRequest],
    error: type[TidemillError],
    reason: str,
) -> None:
    """Each is refused with a clear status; no file is left and the next publish is version 1."""
    fencing_token = client.acquire_fencing_token("test").fencing_token
    with pytest.raises(error, match=reason), translated():
        stub.Publish(iter(messages), timeout=WAIT_S)
    blobs = {Precision.FULL: b"fine"}
    assert client.publish(blobs, METADATA, fencing_token=fencing_token, base_version=0) == 1
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        *("state.json", "state.copy.json", "0000000001.json", "0000000001.copy.json", "0000000001.full.safetensors"),
    }


def test_bytes_that_are_no_message_change_nothing(server: LocalServer, client: ParamsClient) -> None:
    """Garbage instead of a protobuf message fails that call alone."""
    with open_channel(server.address) as channel:
        call: Any = channel.stream_unary("/tidemill.params.v1.ParamService/Publish")
        with pytest.raises(InvalidArgument, match="not a message of"), translated():
            call(iter([b"\xff\xff\xff"]), timeout=WAIT_S)
    assert publish(client, b"fine") == 1


def test_publisher_that_stalls_loses_its_fetch_slot(tmp_path: Path) -> None:
    """A publisher that stops sending gets an error that says so, and the next one gets its turn."""
    with local_server(tmp_path, stall_s=0.2) as server, ParamsClient(server.address) as client:
        fencing_token = client.acquire_fencing_token("test").fencing_token
        ended = threading.Event()

        def stalling() -> Iterator[pb.PublishRequest]:
            yield _header(b"ab")
            ended.wait(WAIT_S)

        with open_channel(server.address) as channel:
            stub = params_pb2_grpc.ParamServiceStub(channel)
            with (
                pytest.raises(Unavailable, match="sent nothing for", check=because(Reason.CALLER_SILENT)),
                translated(),
            ):
                stub.Publish(stalling(), timeout=WAIT_S)
            ended.set()
        assert client.publish({Precision.FULL: b"x"}, METADATA, fencing_token=fencing_token, base_version=0) == 1


def test_superseded_publisher_loses_its_turn_at_once(tmp_path: Path) -> None:
    """However patient the server is with a publisher that sends little, a new one does not wait for the old one."""
    with local_server(tmp_path, stall_s=1000.0) as server, ParamsClient(server.address) as client:
        fencing_token = client.acquire_fencing_token("old").fencing_token
        ended = threading.Event()

        def trickling() -> Iterator[pb.PublishRequest]:
            yield _header(b"ab", fencing_token=fencing_token)
            yield _piece(b"a")
            ended.wait(WAIT_S)

        with open_channel(server.address) as channel:
            old = params_pb2_grpc.ParamServiceStub(channel).Publish.future(trickling(), timeout=10 * WAIT_S)
            wait_until((tmp_path / "incoming" / "full.safetensors").exists, "the first piece to be stored")
            opened = client.acquire_fencing_token("new")
            blobs = {Precision.FULL: b"x"}
            assert client.publish(blobs, METADATA, fencing_token=opened.fencing_token, base_version=0) == 1
            with pytest.raises(FailedPrecondition, match="superseded"), translated():
                old.result(WAIT_S)
            ended.set()


def test_publisher_that_hangs_up_leaves_nothing(server: LocalServer, client: ParamsClient, tmp_path: Path) -> None:
    """A publish cancelled half-way frees its turn at once and its file."""
    fencing_token = client.acquire_fencing_token("test").fencing_token
    sent, ended = threading.Event(), threading.Event()

    def half_of_it() -> Iterator[pb.PublishRequest]:
        yield _header(LARGE)
        yield _piece(LARGE[:MIB])
        sent.set()
        ended.wait(WAIT_S)

    with open_channel(server.address) as channel:
        call = params_pb2_grpc.ParamServiceStub(channel).Publish.future(half_of_it(), timeout=WAIT_S)
        assert sent.wait(WAIT_S)
        call.cancel()
        ended.set()
    assert client.publish({Precision.FULL: b"x"}, METADATA, fencing_token=fencing_token, base_version=0) == 1
    assert list((tmp_path / "incoming").iterdir()) == []
