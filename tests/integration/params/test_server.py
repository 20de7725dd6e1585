"""The parameter server over gRPC: fetching, watching, tags, and what happens at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.naming import because, naming
from tests.support.params_service import LARGE, METADATA, MIB, LocalServer, local_server, publish
from tests.support.waiting import WAIT_S, crowd, wait_until
from tidemill.errors import (
    DataLoss,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
    Unavailable,
)
from tidemill.params.client import ParamsClient
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import Encoding, Params, Precision
from tidemill.params.watcher import ParamsWatcher
from tidemill.params.wire import pack_encoding
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.status import translated
from tidemill.services.paramserver.upload import Upload


def test_published_version_is_fetched_in_both_precisions(client: ParamsClient, server: LocalServer) -> None:
    """Bytes longer than a piece arrive whole, with their description; a missing half is full."""
    assert publish(client, LARGE, b"half") == 1
    full = client.fetch()
    half = client.fetch(1, precision=Precision.HALF)
    assert full is not None
    assert half is not None
    assert (full.blob, full.precision, full.number) == (LARGE, Precision.FULL, 1)
    assert (half.blob, half.precision) == (b"half", Precision.HALF)
    assert full.version == half.version
    assert full.version.metadata == METADATA
    publish(client, b"only full")
    fallback = client.fetch(precision=Precision.HALF)
    assert fallback is not None
    assert (fallback.blob, fallback.precision) == (b"only full", Precision.FULL)
    assert server.metric("fetched_bytes_total", precision="full") == len(LARGE) + len(b"only full")
    assert server.metric("fetched_bytes_total", precision="half") == 4
    assert server.metric("latest_version") == server.metric("versions") == 2
    assert server.metric("published_total") == 2


def test_fetch_of_nothing_newer_is_none(client: ParamsClient) -> None:
    """No version at all, the known version, and a number not above it all mean: nothing newer."""
    assert client.fetch() is None
    publish(client, b"one")
    assert client.fetch(newer_than=1) is None
    assert client.fetch(1, newer_than=1) is None


def test_fetch_of_what_is_not_there_is_not_found(client: ParamsClient) -> None:
    """Unknown numbers, removed versions and unset tags are told apart from 'nothing newer'."""
    for blob in (b"1", b"2", b"3", b"4"):
        publish(client, blob)
    unknown: dict[int | str, Reason] = {
        1: Reason.UNKNOWN_VERSION,
        5: Reason.UNKNOWN_VERSION,
        "best": Reason.UNKNOWN_TAG,
    }
    for selector, reason in unknown.items():
        with pytest.raises(NotFound, check=because(reason)):
            client.fetch(selector, wait_s=10)


def test_waiting_fetch_gets_the_version_published_meanwhile(client: ParamsClient, server: LocalServer) -> None:
    """The answer comes with the publish, not at the end of the wait."""
    publish(client, b"one")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(client.fetch(newer_than=1, wait_s=WAIT_S)))
    waiting.start()
    wait_until(lambda: server.metric("fetches") == 1, "the fetch to wait")
    publish(client, b"two")
    waiting.join(WAIT_S / 2)
    assert [params.blob for params in found] == [b"two"]


def test_waiting_fetch_times_out_cleanly(client: ParamsClient, server: LocalServer) -> None:
    """A wait without success answers None and leaves nothing waiting."""
    assert client.fetch(wait_s=0.05) is None
    assert client.fetch(newer_than=7, wait_s=0.05) is None
    assert server.metric("fetches") == 0


def test_watch_announces_now_and_after_every_change(client: ParamsClient, server: LocalServer) -> None:
    """The first announcement is what is there; a tag is followed in both directions."""
    publish(client, b"one")
    watch = client.watch()
    versions = iter(watch)
    assert next(versions).version == 1
    publish(client, b"two")
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
    publish(client, b"one")
    watch = client.watch(newer_than=1)
    publish(client, b"two")
    assert next(iter(watch)).version == 2
    watch.cancel()


def test_tags_and_versions_are_listed(client: ParamsClient) -> None:
    """Oldest first; a tagged version outlives its turn."""
    publish(client, b"1")
    client.set_tag("best", 1)
    for blob in (b"2", b"3", b"4", b"5"):
        publish(client, blob)
    listed = client.list_versions()
    assert [version.version for version in listed.versions] == [1, 3, 4, 5]
    assert listed.tags == {"best": 1, "latest": 5}
    best = client.fetch("best")
    assert best is not None
    assert best.blob == b"1"


@pytest.mark.parametrize(
    "request_, reason",
    [
        (pb.FetchRequest(), "selector"),
        (pb.FetchRequest(version=0), "version 0"),
        (pb.FetchRequest(tag=""), "tag ''"),
        (pb.FetchRequest(tag="../x"), "tag"),
        (pb.FetchRequest(tag="latest", wait_s=-1), "wait_s -1.0 0 300"),
        (pb.FetchRequest(tag="latest", wait_s=301), "wait_s 301.0 0 300"),
        (pb.FetchRequest(tag="latest", wait_s=float("nan")), "wait_s nan"),
        (pb.FetchRequest(tag="latest", precision=9), "precision 9"),  # type: ignore[arg-type]
        (pb.FetchRequest(tag="latest", newer_than_created=Timestamp(seconds=2**60)), f"newer_than_created {2**60}"),
    ],
)
def test_malformed_fetch_is_invalid(
    stub: params_pb2_grpc.ParamServiceStub, request_: pb.FetchRequest, reason: str
) -> None:
    """The message names the field and its value."""
    with pytest.raises(InvalidArgument, match=naming(reason)), translated():
        list(stub.Fetch(request_, timeout=WAIT_S))


def test_reads_go_on_while_a_publish_waits_for_the_disk(
    server: LocalServer, client: ParamsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the disk stuck, fetch, watch and list still answer with the version before."""
    publish(client, b"old")
    finish, reached, released = Upload.finish, threading.Event(), threading.Event()

    def stuck(upload: Upload) -> None:
        reached.set()
        released.wait(WAIT_S)
        finish(upload)

    monkeypatch.setattr(Upload, "finish", stuck)
    publishing = threading.Thread(target=publish, args=(client, b"new"))
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
    publish(client, b"0" * 2 * MIB)
    client.set_tag("best", 1)
    failures: list[BaseException] = []
    stop = threading.Event()

    def read(selector: str) -> None:
        try:
            with ParamsClient(server.address) as own:
                while not stop.is_set():
                    params = own.fetch(selector)
                    assert params is not None
                    assert params.blob == b"%d" % (params.number - 1) * 2 * MIB
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(selector,)) for selector in ("latest", "best", "latest")]
    for reader in readers:
        reader.start()
    for i in range(1, 8):
        publish(client, b"%d" % i * 2 * MIB)
    stop.set()
    for reader in readers:
        reader.join(WAIT_S)
    assert failures == []


def test_corrupt_version_is_data_loss_and_counted(client: ParamsClient, server: LocalServer, tmp_path: Path) -> None:
    """Not one byte of it is sent; other versions are served."""
    publish(client, LARGE)
    publish(client, b"two")
    path = tmp_path / "0000000001.full.safetensors"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(DataLoss, match=naming("version 1 corrupt")):
        client.fetch(1)
    assert server.metric("corrupt_versions_total") == 1
    assert server.metric("fetched_bytes_total", precision="full") == 0
    params = client.fetch()
    assert params is not None
    assert params.blob == b"two"


def test_client_takes_no_memory_beyond_its_limit(client: ParamsClient, server: LocalServer) -> None:
    """The declared size decides before the bytes come."""
    publish(client, LARGE)
    with (
        ParamsClient(server.address, max_blob_bytes=MIB) as careful,
        pytest.raises(ResourceExhausted, match=f"allowed: {MIB}"),
    ):
        careful.fetch()


def test_absent_server_is_unavailable() -> None:
    """Every call says so within its deadline."""
    with ParamsClient("127.0.0.1:9", deadline_s=0.5, transfer_deadline_s=0.5) as client:
        for call in (client.list_versions, client.fetch, lambda: client.acquire_fencing_token("x")):
            with pytest.raises(Unavailable):
                call()


def _unhurried_channel(address: str) -> grpc.Channel:
    """Return a channel whose calls are read by who holds them alone.

    One that shares a client's connection, or measures its own, gets a window large enough for whole versions unread.
    """
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)])


def test_fetch_that_is_not_read_ends(tmp_path: Path) -> None:
    """It gives its memory back, so that the next is sent its bytes; who reads on is told."""
    blob, unread_s = LARGE * 4, 2 * crowd()
    with (
        local_server(tmp_path, unread_s=unread_s, max_fetch_bytes=4 * MIB) as server,  # one fetch at a time
        ParamsClient(server.address, reads_files=False) as client,
        _unhurried_channel(server.address) as channel,
    ):
        publish(client, blob)
        unread = params_pb2_grpc.ParamServiceStub(channel).Fetch(pb.FetchRequest(tag="latest"))
        assert next(unread).header.version.version == 1
        params = client.fetch()
        assert params is not None
        assert params.blob == blob
        said = naming(f"256 KiB read {unread_s:g} s")
        with pytest.raises(Unavailable, match=said, check=because(Reason.CALLER_SILENT)), translated():
            list(unread)
        assert server.metric("unread_fetches_total") == 1


def test_address_that_leaves_fetches_unread_is_refused_others(tmp_path: Path) -> None:
    """Until it ends them, as each keeps a piece in the server's memory."""
    with (
        local_server(tmp_path, unread_s=0.2) as server,
        ParamsClient(server.address, reads_files=False) as client,
        _unhurried_channel(server.address) as channel,
    ):
        publish(client, LARGE * 4)
        stub = params_pb2_grpc.ParamServiceStub(channel)
        unread = [stub.Fetch(pb.FetchRequest(tag="latest")) for _ in range(16)]
        refusal = naming("16 fetches from 127.0.0.1 256 KiB 0.2 s")

        def fetched() -> Params | str | None:
            try:
                return client.fetch()
            except Unavailable as error:
                if error.reason not in (Reason.BUSY, Reason.CALLER_SILENT):  # silent: this thread was kept waiting
                    raise
                return str(error)

        wait_until(lambda: isinstance(said := fetched(), str) and re.search(refusal, said), "the refusal")
        for call in unread:
            call.cancel()
        wait_until(lambda: isinstance(fetched(), Params), "the end of the refusal")


class _Slow(params_pb2_grpc.ParamServiceServicer):
    """Sends a version a byte at a time; of a version by number, nothing after the header."""

    def __init__(self, blob: bytes, pause_s: float) -> None:
        self._blob, self._pause_s = blob, pause_s

    async def Fetch(self, request: pb.FetchRequest, context: object) -> AsyncIterator[pb.FetchResponse]:
        encoding = Encoding(Precision.FULL, len(self._blob), hashlib.sha256(self._blob).digest())
        yield pb.FetchResponse(header=pb.FetchHeader(version=pb.Version(version=1), encoding=pack_encoding(encoding)))
        if request.version:
            await asyncio.Event().wait()
        for byte in self._blob:
            await asyncio.sleep(self._pause_s)
            yield pb.FetchResponse(piece=bytes([byte]))


def test_fetch_takes_as_long_as_bytes_come() -> None:
    """The deadline is that of the next bytes, however many follow; a server that sends none is told of."""
    limit_s = 2 * crowd()
    with BackgroundServer("paramserver", ServerSettings("127.0.0.1:0", grace_s=0.2)) as background:
        params_pb2_grpc.add_ParamServiceServicer_to_server(_Slow(b"slowly", limit_s / 4), background.server.grpc)
        with ParamsClient(background.start(), transfer_deadline_s=limit_s) as client:
            params = client.fetch()
            assert params is not None
            assert params.blob == b"slowly"
            with pytest.raises(Unavailable, match=naming(f"parameter server nothing {limit_s:g} s")):
                client.fetch(1)


def test_deadline_without_end_takes_any_time(server: LocalServer) -> None:
    """A publish and a fetch are made as with any other."""
    with ParamsClient(server.address, transfer_deadline_s=math.inf, reads_files=False) as client:
        publish(client, LARGE)
        params = client.fetch(wait_s=0.05)
        assert params is not None
        assert params.blob == LARGE


def test_wait_for_what_is_no_number_is_refused(server: LocalServer) -> None:
    """The message names the argument; a wait without end is for `math.inf` seconds."""
    with ParamsWatcher(server.address) as watcher, ParamsPublisher(server.address, name="test") as publisher:
        for wait in (watcher.wait, publisher.flush):
            with pytest.raises(TypeError, match=naming("timeout_s NoneType")):
                wait(None)  # type: ignore[arg-type]


def test_wait_without_end_is_for_the_next_version(server: LocalServer) -> None:
    """And a flush without end for its acknowledgement."""
    with (
        ThreadPoolExecutor() as threads,  # left last: what waits in them ends with the watcher
        ParamsWatcher(server.address) as watcher,
        ParamsPublisher(server.address, name="test") as publisher,
    ):
        waiting = threads.submit(watcher.wait, math.inf)
        publisher.offer({Precision.FULL: LARGE}, METADATA)
        assert threads.submit(publisher.flush, math.inf).result(WAIT_S)
        params = waiting.result(WAIT_S)
        assert params is not None
        assert params.blob == LARGE
