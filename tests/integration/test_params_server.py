"""The parameter server over gRPC: every call, its errors, and what goes on at the same time."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from services.paramserver.incoming import Incoming
from tests.integration.params_service import METADATA, WAIT_S, LocalServer, local_server
from tidemill.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
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

_LIMIT_BYTES = 4 * 2**20
_MIB = 2**20
_LARGE = np.random.default_rng(0).bytes(3 * _MIB + 17)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server that keeps three versions of at most 4 MiB."""
    with local_server(tmp_path, keep_versions=3, max_blob_bytes=_LIMIT_BYTES) as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[ParamsClient]:
    """A client of the server."""
    with ParamsClient(server.address) as connected:
        yield connected


@pytest.fixture
def stub(server: LocalServer) -> Iterator[params_pb2_grpc.ParamServiceStub]:
    """The bare stub, for messages that the client would never send."""
    with open_channel(server.address) as channel:
        yield params_pb2_grpc.ParamServiceStub(channel)


def _publish(client: ParamsClient, full: bytes, half: bytes = b"") -> int:
    """Publish as a new publisher."""
    opened = client.open_generation("test")
    blobs = {Precision.FULL: full} | ({Precision.HALF: half} if half else {})
    return client.publish(blobs, METADATA, generation=opened.generation, base_version=opened.latest_version)


def _header(*blobs: bytes, generation: int = 1, base_version: int = 0, **change: object) -> pb.PublishRequest:
    encodings = [
        pb.Encoding(
            **{"precision": i + 1, "size_bytes": len(blob), "sha256": hashlib.sha256(blob).digest()} | change  # type: ignore[arg-type]
        )
        for i, blob in enumerate(blobs)
    ]
    header = pb.PublishHeader(generation=generation, base_version=base_version, encodings=encodings)
    return pb.PublishRequest(header=header)


def _piece(data: bytes) -> pb.PublishRequest:
    return pb.PublishRequest(piece=data)


def test_published_version_is_fetched_in_both_precisions(client: ParamsClient, server: LocalServer) -> None:
    """Bytes longer than a piece arrive whole, with their description; a missing half is full."""
    assert _publish(client, _LARGE, b"half") == 1
    full = client.fetch()
    half = client.fetch(1, precision=Precision.HALF)
    assert full is not None
    assert half is not None
    assert (full.blob, full.precision, full.number) == (_LARGE, Precision.FULL, 1)
    assert (half.blob, half.precision) == (b"half", Precision.HALF)
    assert full.version == half.version
    assert full.version.metadata == METADATA
    _publish(client, b"only full")
    fallback = client.fetch(precision=Precision.HALF)
    assert fallback is not None
    assert (fallback.blob, fallback.precision) == (b"only full", Precision.FULL)
    assert server.metric("fetched_bytes_total", precision="full") == len(_LARGE) + len(b"only full")
    assert server.metric("fetched_bytes_total", precision="half") == 4
    assert server.metric("latest_version") == server.metric("versions") == 2
    assert server.metric("published_total") == 2


def test_fetch_of_nothing_newer_is_none(client: ParamsClient) -> None:
    """No version at all, the known version, and a number not above it all mean: nothing newer."""
    assert client.fetch() is None
    _publish(client, b"one")
    assert client.fetch(newer_than=1) is None
    assert client.fetch(1, newer_than=1) is None


def test_fetch_of_what_is_not_there_is_not_found(client: ParamsClient) -> None:
    """Unknown numbers, removed versions and unset tags are told apart from 'nothing newer'."""
    for blob in (b"1", b"2", b"3", b"4"):
        _publish(client, blob)
    for selector in (1, 5, "best"):
        with pytest.raises(NotFound):
            client.fetch(selector, wait_s=10)


def test_waiting_fetch_gets_the_version_published_meanwhile(client: ParamsClient, server: LocalServer) -> None:
    """The answer comes with the publish, not at the end of the wait."""
    _publish(client, b"one")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(client.fetch(newer_than=1, wait_s=WAIT_S)))
    waiting.start()
    while server.metric("fetches") < 1:
        waiting.join(0.01)
    _publish(client, b"two")
    waiting.join(WAIT_S / 2)
    assert [params.blob for params in found] == [b"two"]


def test_waiting_fetch_times_out_cleanly(client: ParamsClient, server: LocalServer) -> None:
    """A wait in vain answers None and leaves nothing waiting."""
    assert client.fetch(wait_s=0.05) is None
    assert client.fetch(newer_than=7, wait_s=0.05) is None
    assert server.metric("fetches") == 0


def test_watch_announces_now_and_after_every_change(client: ParamsClient, server: LocalServer) -> None:
    """The first announcement is what is there; a tag is followed in both directions."""
    _publish(client, b"one")
    watch = client.watch()
    versions = iter(watch)
    assert next(versions).version == 1
    _publish(client, b"two")
    assert next(versions).version == 2
    watch.cancel()
    assert list(versions) == []
    best = client.watch("best")  # not set yet
    changes = iter(best)
    for number in (2, 1):
        client.set_tag("best", number)
        assert next(changes).version == number
    best.cancel()


def test_watch_does_not_announce_what_is_known(client: ParamsClient) -> None:
    """A watcher that reconnects hears only of a change."""
    _publish(client, b"one")
    watch = client.watch(newer_than=1)
    _publish(client, b"two")
    assert next(iter(watch)).version == 2
    watch.cancel()


def test_tags_and_versions_are_listed(client: ParamsClient) -> None:
    """Oldest first; a tagged version outlives its turn."""
    _publish(client, b"1")
    client.set_tag("best", 1)
    for blob in (b"2", b"3", b"4", b"5"):
        _publish(client, blob)
    listed = client.list_versions()
    assert [version.version for version in listed.versions] == [1, 3, 4, 5]
    assert listed.tags == {"best": 1, "latest": 5}
    best = client.fetch("best")
    assert best is not None
    assert best.blob == b"1"


@pytest.mark.parametrize(
    "tag, number, error",
    [
        ("latest", 1, InvalidArgument),
        ("Best", 1, InvalidArgument),
        ("", 1, InvalidArgument),
        ("best", 2, NotFound),
    ],
)
def test_bad_tag_is_refused(client: ParamsClient, tag: str, number: int, error: type[TidemillError]) -> None:
    """`latest`, malformed names and missing versions cannot be tagged."""
    _publish(client, b"1")
    with pytest.raises(error):
        client.set_tag(tag, number)
    assert client.list_versions().tags == {"latest": 1}


@pytest.mark.parametrize(
    "request_, reason",
    [
        (pb.FetchRequest(), "selector is missing"),
        (pb.FetchRequest(version=0), "version is 0"),
        (pb.FetchRequest(tag=""), "tag is ''"),
        (pb.FetchRequest(tag="../x"), "tag is"),
        (pb.FetchRequest(tag="latest", wait_s=-1), "wait_s is -1"),
        (pb.FetchRequest(tag="latest", wait_s=301), "wait_s is 301"),
        (pb.FetchRequest(tag="latest", wait_s=float("nan")), "wait_s is nan"),
        (pb.FetchRequest(tag="latest", precision=9), "precision is 9"),  # type: ignore[arg-type]
    ],
)
def test_malformed_fetch_is_invalid(
    stub: params_pb2_grpc.ParamServiceStub, request_: pb.FetchRequest, reason: str
) -> None:
    """The message names the field and its value."""
    with pytest.raises(InvalidArgument, match=reason), translated():
        list(stub.Fetch(request_, timeout=WAIT_S))


def test_older_publisher_is_refused(client: ParamsClient, server: LocalServer) -> None:
    """A second publisher takes over; the first stores nothing more."""
    first = client.open_generation("first")
    client.publish({Precision.FULL: b"1"}, METADATA, generation=first.generation, base_version=0)
    second = client.open_generation("second")
    assert second.latest_version == 1
    with pytest.raises(FailedPrecondition, match="superseded"):
        client.publish({Precision.FULL: b"2"}, METADATA, generation=first.generation, base_version=1)
    client.publish({Precision.FULL: b"3"}, METADATA, generation=second.generation, base_version=1)
    assert [version.generation for version in client.list_versions().versions] == [1, 2]
    assert server.metric("stale_publishes_total") == 1


def test_repeated_publish_stores_once(client: ParamsClient) -> None:
    """A retry whose answer was lost is answered with the same number, without a second copy."""
    opened = client.open_generation("test")
    for _ in range(3):
        blobs = {Precision.FULL: _LARGE}
        assert client.publish(blobs, METADATA, generation=opened.generation, base_version=0) == 1
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
    ([_header(b"ab"), _header(b"ab")], InvalidArgument, "only pieces"),
    ([_header(b"ab"), pb.PublishRequest()], InvalidArgument, "only pieces"),
    ([_header(_LARGE), _piece(_LARGE[: _MIB + 1])], InvalidArgument, f"piece has {_MIB + 1} bytes"),
    ([_header(b"ab", size_bytes=_LIMIT_BYTES + 1)], ResourceExhausted, "size_bytes is 4194305"),
    ([_header(b"ab", size_bytes=2**63)], ResourceExhausted, "size_bytes is"),
    ([_header(b"ab", sha256=b"short")], InvalidArgument, "sha256 is 5"),
    ([_header(b"ab", precision=7)], InvalidArgument, "precision is 7"),
    ([_header(b"ab", precision=0)], InvalidArgument, "precision is 0"),
    ([_header(b"ab", precision=2)], InvalidArgument, "full precision first"),
    ([_header(b"ab", generation=9)], InvalidArgument, "generation is 9"),
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
    generation = client.open_generation("test").generation
    with pytest.raises(error, match=reason), translated():
        stub.Publish(iter(messages), timeout=WAIT_S)
    blobs = {Precision.FULL: b"fine"}
    assert client.publish(blobs, METADATA, generation=generation, base_version=0) == 1
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        *("state.json", "state.copy.json", "0000000001.json", "0000000001.full.safetensors"),
    }


def test_bytes_that_are_no_message_change_nothing(server: LocalServer, client: ParamsClient) -> None:
    """Garbage instead of a protobuf message fails that call alone."""
    with open_channel(server.address) as channel:
        call: Any = channel.stream_unary("/tidemill.params.v1.ParamService/Publish")
        with pytest.raises(grpc.RpcError):
            call(iter([b"\xff\xff\xff"]), timeout=WAIT_S)
    assert _publish(client, b"fine") == 1


def test_publisher_that_stalls_loses_its_turn(tmp_path: Path) -> None:
    """A publisher that stops sending is told so, and the next one gets its turn."""
    with local_server(tmp_path, stall_s=0.2) as server, ParamsClient(server.address) as client:
        generation = client.open_generation("test").generation
        ended = threading.Event()

        def stalling() -> Iterator[pb.PublishRequest]:
            yield _header(b"ab")
            ended.wait(WAIT_S)

        with open_channel(server.address) as channel:
            stub = params_pb2_grpc.ParamServiceStub(channel)
            with pytest.raises(Unavailable, match="sent nothing for"), translated():
                stub.Publish(stalling(), timeout=WAIT_S)
            ended.set()
        assert client.publish({Precision.FULL: b"x"}, METADATA, generation=generation, base_version=0) == 1


def test_publisher_that_hangs_up_leaves_nothing(server: LocalServer, client: ParamsClient, tmp_path: Path) -> None:
    """A publish cancelled half-way frees its turn at once and its file."""
    generation = client.open_generation("test").generation
    sent, ended = threading.Event(), threading.Event()

    def half_of_it() -> Iterator[pb.PublishRequest]:
        yield _header(_LARGE)
        yield _piece(_LARGE[:_MIB])
        sent.set()
        ended.wait(WAIT_S)

    with open_channel(server.address) as channel:
        call = params_pb2_grpc.ParamServiceStub(channel).Publish.future(half_of_it(), timeout=WAIT_S)
        assert sent.wait(WAIT_S)
        call.cancel()
        ended.set()
    assert client.publish({Precision.FULL: b"x"}, METADATA, generation=generation, base_version=0) == 1
    assert list((tmp_path / "incoming").iterdir()) == []


def test_reads_go_on_while_a_publish_waits_for_the_disk(
    server: LocalServer, client: ParamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the disk stuck, fetch, watch and list still answer with the version before."""
    _publish(client, b"old")
    finish, reached, released = Incoming.finish, threading.Event(), threading.Event()

    def stuck(incoming: Incoming) -> None:
        reached.set()
        released.wait(WAIT_S)
        finish(incoming)

    monkeypatch.setattr(Incoming, "finish", stuck)
    publishing = threading.Thread(target=_publish, args=(client, b"new"))
    publishing.start()
    try:
        assert reached.wait(WAIT_S)
        params = client.fetch()
        assert params is not None
        assert params.blob == b"old"
        assert next(iter(client.watch())).version == 1
        assert client.list_versions().tags == {"latest": 1}
    finally:
        released.set()
        publishing.join(WAIT_S)
    params = client.fetch()
    assert params is not None
    assert params.blob == b"new"


def test_fetches_during_publishes_always_get_whole_versions(client: ParamsClient, server: LocalServer) -> None:
    """Readers of latest, of the oldest and of a tag never see a mixture or a missing file."""
    _publish(client, b"0" * 2 * _MIB)
    client.set_tag("best", 1)
    failures: list[BaseException] = []
    stop = threading.Event()

    def read(selector: str) -> None:
        try:
            with ParamsClient(server.address) as own:
                while not stop.is_set():
                    params = own.fetch(selector)
                    assert params is not None
                    assert params.blob == b"%d" % (params.number - 1) * 2 * _MIB
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(selector,)) for selector in ("latest", "best", "latest")]
    for reader in readers:
        reader.start()
    for i in range(1, 8):
        _publish(client, b"%d" % i * 2 * _MIB)
    stop.set()
    for reader in readers:
        reader.join(WAIT_S)
    assert failures == []


def test_damaged_version_is_data_loss_and_counted(client: ParamsClient, server: LocalServer, tmp_path: Path) -> None:
    """Not one byte of it is sent; other versions are served."""
    _publish(client, _LARGE)
    _publish(client, b"two")
    path = tmp_path / "0000000001.full.safetensors"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(DataLoss, match="version 1 is damaged"):
        client.fetch(1)
    assert server.metric("corrupt_versions_total") == 1
    assert server.metric("fetched_bytes_total", precision="full") == 0
    params = client.fetch()
    assert params is not None
    assert params.blob == b"two"


def test_client_takes_no_memory_beyond_its_limit(client: ParamsClient, server: LocalServer) -> None:
    """The declared size decides before the bytes come."""
    _publish(client, _LARGE)
    with (
        ParamsClient(server.address, max_blob_bytes=_MIB) as careful,
        pytest.raises(ResourceExhausted, match=f"allowed: {_MIB}"),
    ):
        careful.fetch()


def test_absent_server_is_unavailable() -> None:
    """Every call says so within its deadline."""
    with ParamsClient("127.0.0.1:9", deadline_s=0.5, transfer_deadline_s=0.5) as client:
        for call in (client.list_versions, client.fetch, lambda: client.open_generation("x")):
            with pytest.raises(Unavailable):
                call()
