"""A version is read from the server's folder where that is on this machine, and sent in pieces wherever that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.params_service import LARGE, LocalServer, local_server, publish
from tidemill.params.client import ParamsClient, UnreadableFile, read_encoding
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import Encoding, Precision
from tidemill.services.paramserver import servicer as servicer_module
from tidemill.services.paramserver.version_store import VersionStore


@pytest.fixture
def reader(server: LocalServer) -> Iterator[ParamsClient]:
    """A client as everything on this machine has it."""
    with ParamsClient(server.address) as connected:
        yield connected


def _sent_bytes(server: LocalServer) -> float:
    return sum(server.metric("fetched_bytes_total", precision=precision.value) for precision in Precision)


def _fetched(client: ParamsClient, precision: Precision = Precision.FULL) -> bytes:
    params = client.fetch(precision=precision)
    assert params is not None
    assert params.version.encoding(params.precision).size_bytes == len(params.blob)
    return params.blob


def test_file_is_read_and_nothing_sent(reader: ParamsClient, server: LocalServer) -> None:
    """In both precisions; a version without half precision comes in full."""
    publish(reader, LARGE, b"half")
    assert _fetched(reader) == LARGE
    assert _fetched(reader, Precision.HALF) == b"half"
    publish(reader, b"only full")
    assert _fetched(reader, Precision.HALF) == b"only full"
    assert reader.fetch(newer_than=2) is None
    assert _sent_bytes(server) == 0


def test_unix_socket_is_on_this_machine(tmp_path: Path) -> None:
    """Its peers have no address."""
    with (
        local_server(tmp_path / "params", address=f"unix://{tmp_path}/s") as server,
        ParamsClient(server.address) as it,
    ):
        publish(it, b"one")
        assert _fetched(it) == b"one"
        assert _sent_bytes(server) == 0


def test_caller_of_another_machine_is_sent_the_bytes(
    reader: ParamsClient, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not name it a file."""
    monkeypatch.setattr(servicer_module, "is_local", lambda peer: False)
    publish(reader, LARGE)
    assert _fetched(reader) == LARGE
    assert _sent_bytes(server) == len(LARGE)


@pytest.mark.parametrize("names", ["folder", "other_file", "pipe", "device"])
def test_folder_that_cannot_be_seen_is_not_tried_again(
    reader: ParamsClient, server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """As in another container, where the path is nothing or something else: from then on bytes are sent at once."""
    made: dict[str, Callable[[Path], object]] = {
        "folder": lambda path: path,
        "other_file": lambda path: path.write_bytes(b"eno"),
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
    }
    path = tmp_path / "unseen" / "file"
    if names != "folder":
        path.parent.mkdir()
        made[names](path)
    asked = 0

    def elsewhere(*_: object) -> Path:
        nonlocal asked
        asked += 1
        return path

    monkeypatch.setattr(VersionStore, "file", elsewhere)
    publish(reader, b"one")
    assert [_fetched(reader) for _ in range(3)] == [b"one"] * 3
    assert asked == 1
    assert _sent_bytes(server) == 9


def test_version_that_was_removed_meanwhile_is_fetched_again(
    reader: ParamsClient, server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder can be seen, so the next version's file is read again."""
    publish(reader, b"one")
    with monkeypatch.context() as patched:
        patched.setattr(VersionStore, "file", lambda *_: tmp_path / "0000000000.full.safetensors")
        assert _fetched(reader) == b"one"
    assert _sent_bytes(server) == 3
    assert _fetched(reader) == b"one"
    assert _sent_bytes(server) == 3


def test_header_names_the_file_only_to_those_who_ask(
    reader: ParamsClient, stub: params_pb2_grpc.ParamServiceStub, tmp_path: Path
) -> None:
    """A client of before knows nothing of files."""
    publish(reader, b"one")
    header, piece = stub.Fetch(pb.FetchRequest(tag="latest"))
    assert (header.header.file, piece.piece) == ("", b"one")
    (header,) = stub.Fetch(pb.FetchRequest(tag="latest", accepts_file=True))
    assert header.header.file == str(tmp_path / "0000000001.full.safetensors")


@pytest.mark.parametrize("path", ["", "relative", "/nul\0l", "/proc/self/mem", "/"])
def test_hostile_path_is_an_error_of_its_own(path: str) -> None:
    """Nothing else is raised, and nothing is read."""
    with pytest.raises(UnreadableFile):
        read_encoding(path, Encoding(Precision.FULL, 3, b""))


def _of_another_machine(server: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ParamsClient:
    monkeypatch.setattr(servicer_module, "is_local", lambda peer: False)
    return ParamsClient(server.address, folder=folder)


def test_mounted_folder_is_read_wherever_the_server_is(
    server: LocalServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container beside the server's, at another path than its own; before it is mounted, bytes come."""
    mounted = tmp_path_factory.mktemp("container") / "params"
    with _of_another_machine(server, mounted, monkeypatch) as client:
        publish(client, LARGE, b"half")
        assert _fetched(client) == LARGE
        assert _sent_bytes(server) == len(LARGE)
        mounted.symlink_to(tmp_path)
        assert _fetched(client) == LARGE
        assert _fetched(client, Precision.HALF) == b"half"
    assert _sent_bytes(server) == len(LARGE)


@pytest.mark.parametrize("lies_there", [b"eno", b"on", None])
def test_mounted_folder_with_other_bytes_is_left_for_the_wire(
    server: LocalServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    lies_there: bytes | None,
) -> None:
    """Corrupt, cut short, or behind the server's: the version comes as it was published."""
    mounted = tmp_path_factory.mktemp("container")
    if lies_there is not None:
        (mounted / "0000000001.full.safetensors").write_bytes(lies_there)
    with _of_another_machine(server, mounted, monkeypatch) as client:
        publish(client, b"one")
        assert [_fetched(client) for _ in range(2)] == [b"one"] * 2
        (mounted / "0000000001.full.safetensors").write_bytes(b"one")
        assert _fetched(client) == b"one"
    is_tried_again = lies_there is None
    assert _sent_bytes(server) == (6 if is_tried_again else 9)
