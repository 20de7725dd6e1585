"""The version store: what is stored, kept, forgotten and remembered by a restart."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import because, naming
from tests.support.publishing import (
    METADATA,
    NOON,
    OpenStore,
    names,
    publish,
    read,
    request_of,
    small_store,
    store_request,
)
from tests.support.waiting import WAIT_S
from tidemill.errors import (
    DataLoss,
    FailedPrecondition,
    FatalError,
    NotFound,
    Reason,
    Unavailable,
)
from tidemill.params.version import Encoding, Precision
from tidemill.services.paramserver.version_files import IntactBlobs, StoredBlob


def test_published_version_reads_back_with_its_description(tmp_path: Path, open_store: OpenStore) -> None:
    """Bytes, metadata, base, fencing token and time are those of the publish."""
    store = open_store(tmp_path)
    version = publish(store, b"full", b"half")
    assert (version.version, version.base_version, version.fencing_token) == (1, 0, 1)
    assert (version.created, version.metadata) == (NOON, METADATA)
    assert read(store, 1) == b"full"
    assert read(store, 1, Precision.HALF) == b"half"
    assert names(tmp_path) == {
        "0000000001.json",
        "0000000001.copy.json",
        "0000000001.full.safetensors",
        "0000000001.half.safetensors",
    }


def test_missing_half_is_answered_with_full(tmp_path: Path, open_store: OpenStore) -> None:
    """A version without the wanted encoding gives its full one."""
    store = open_store(tmp_path)
    publish(store, b"full")
    blob = store.open(1, Precision.HALF)
    blob.verify()
    assert (blob.encoding.precision, blob.read_memory(10)) == (Precision.FULL, b"full")
    blob.close()


def test_restart_restores_everything(tmp_path: Path, open_store: OpenStore) -> None:
    """Versions, tags, fencing token and numbers are the same after a restart."""
    store = open_store(tmp_path)
    for blob in (b"1", b"2", b"3"):
        publish(store, blob)
    store.set_tag("best", 2)
    store.acquire_fencing_token()
    before = store.catalog
    store.close()
    again = open_store(tmp_path)
    assert again.catalog == before
    assert again.corrupt_versions == 0
    assert publish(again, b"4").version == 4


def test_newest_version_is_read_from_memory_and_others_from_disk(tmp_path: Path, open_store: OpenStore) -> None:
    """Memory holds one version, also after a restart, and none before it is asked for."""
    store = open_store(tmp_path)
    publish(store, b"old")
    publish(store, b"new", b"hn")
    for _ in range(2):
        for number, precision in ((2, Precision.FULL), (2, Precision.HALF), (1, Precision.FULL)):
            with closing(store.open(number, precision)) as blob, closing(store.open(number, precision)) as other:
                assert not blob.in_memory
                blob.verify()
                assert blob.in_memory == other.in_memory == (number == 2)
        store.close()
        store = open_store(tmp_path)


def test_large_version_is_not_held_in_memory(tmp_path: Path, open_store: OpenStore) -> None:
    """A version over half of the budget for fetches is read from disk, newest or not."""
    store = open_store(tmp_path, max_fetch_bytes=9)
    publish(store, b"abcd")
    publish(store, b"abcde")
    with closing(store.open(2, Precision.FULL)) as blob:
        blob.verify()
        assert not blob.in_memory
    assert read(store, 2) == b"abcde"


def test_large_version_is_verified_once(tmp_path: Path, open_store: OpenStore) -> None:
    """Not by each of its readers; again once its file has changed."""
    store = open_store(tmp_path, max_fetch_bytes=9)
    publish(store, b"abcde")
    path = tmp_path / "0000000001.full.safetensors"
    first = path.stat()
    with closing(store.open(1, Precision.FULL)) as blob:
        blob.verify()
    path.write_bytes(b"Abcde")
    os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns + 1))
    with closing(store.open(1, Precision.FULL)) as blob, pytest.raises(DataLoss, match="SHA-256"):
        blob.verify()
    os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns))
    with closing(store.open(1, Precision.FULL)) as blob:
        blob.verify()


def test_version_is_verified_while_another_is_read_from_a_slow_disk() -> None:
    """Readers of the newest do not wait for those of an old one."""
    intact, encoding = IntactBlobs(9), Encoding(Precision.FULL, 5, hashlib.sha256(b"abcde").digest())
    reached, released = threading.Event(), threading.Event()

    class Slow(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            reached.set()
            released.wait(2 * WAIT_S)
            return super().read(size) or b""

    with TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        path = Path(folder) / "blob"
        path.write_bytes(b"abcde")
        with Slow(path) as slow, path.open("rb") as file:
            try:
                old = threads.submit(intact.check, 1, encoding, slow)
                assert reached.wait(WAIT_S)
                threads.submit(intact.check, 2, encoding, file).result(WAIT_S)
                assert not old.done()
            finally:
                released.set()
            old.result(WAIT_S)


def test_reader_goes_on_from_the_disk_when_a_newer_version_takes_the_memory(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """A slow reader holds no version in memory; it gets the same bytes."""
    store = open_store(tmp_path)
    publish(store, b"abcdef")
    with closing(store.open(1, Precision.FULL)) as blob:
        blob.verify()
        assert blob.read_memory(2) == b"ab"
        publish(store, b"newer")
        assert blob.read_memory(2) is None
        assert (blob.read_disk(2), blob.read_disk(9), blob.read_disk(9)) == (b"cd", b"ef", b"")


def test_removed_versions_that_are_read_take_no_more_than_the_budget(tmp_path: Path, open_store: OpenStore) -> None:
    """Of three removed versions that readers hold open, the oldest is closed to all of its readers."""
    store = open_store(tmp_path, keep_versions=1, max_fetch_bytes=12)
    blobs = []
    for data in (b"11111", b"22222", b"33333", b"44444"):
        number = publish(store, data).version
        blobs += [store.open(number, Precision.FULL) for _ in range(2)]
    assert [blob.closed for blob in blobs] == [True] * 2 + [False] * 6
    assert [blob.read_disk(9) for blob in blobs[2:6:2]] == [b"22222", b"33333"]
    with pytest.raises(Unavailable, match=naming("version 1"), check=because(Reason.VERSION_REMOVED)):
        blobs[0].read_disk(9)
    with pytest.raises(Unavailable, match=naming("version 1"), check=because(Reason.VERSION_REMOVED)):
        blobs[1].verify()
    for blob in blobs:
        blob.close()


def test_version_is_opened_while_a_publish_looks_at_the_readers(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is made in another thread than reads: neither disturbs the other."""
    blobs = []
    opening = threading.Thread(target=lambda: blobs.append(store.open(1, Precision.FULL)))

    class Readers(weakref.WeakSet[StoredBlob]):
        def __iter__(self) -> Iterator[StoredBlob]:
            for blob in super().__iter__():
                yield blob
                if opening.ident is None:
                    opening.start()
                    opening.join(0.5)  # as long as it takes without a lock, and no longer with one

    monkeypatch.setattr(weakref, "WeakSet", Readers)
    store = open_store(tmp_path)
    publish(store, b"one")
    blobs += [store.open(1, Precision.FULL) for _ in range(2)]
    assert publish(store, b"two").version == 2
    opening.join(30)
    assert [blob.read_disk(9) for blob in blobs] == [b"one"] * 3
    for blob in blobs:
        blob.close()


def test_old_versions_are_removed_but_tagged_ones_stay(tmp_path: Path, open_store: OpenStore) -> None:
    """The newest two and the tagged one are kept; a tag that moves on lets its version go."""
    store = open_store(tmp_path, keep_versions=2)
    publish(store, b"1")
    store.set_tag("best", 1)
    for blob in (b"2", b"3", b"4"):
        publish(store, blob)
    assert list(store.catalog.versions) == [1, 3, 4]
    store.set_tag("best", 3)
    assert list(store.catalog.versions) == [3, 4]
    assert {name[:10] for name in names(tmp_path)} == {"0000000003", "0000000004"}
    with pytest.raises(NotFound, match=naming("version 1")):
        store.open(1, Precision.FULL)


def test_publish_writes_no_tags(tmp_path: Path, open_store: OpenStore) -> None:
    """However many tags there are, their files are written when a tag is set and at no other time."""
    store = open_store(tmp_path)
    publish(store, b"1")
    store.set_tag("best", 1)
    before = [(tmp_path / name).stat().st_ino for name in ("tags.json", "tags.copy.json")]
    publish(store, b"2")
    store.acquire_fencing_token()
    assert [(tmp_path / name).stat().st_ino for name in ("tags.json", "tags.copy.json")] == before
    store.set_tag("best", 2)
    assert [(tmp_path / name).stat().st_ino for name in ("tags.json", "tags.copy.json")] != before


def test_open_version_can_be_read_after_it_was_removed(tmp_path: Path, open_store: OpenStore) -> None:
    """A slow reader gets every byte of a version that retention removes meanwhile."""
    store = open_store(tmp_path, keep_versions=1)
    publish(store, b"first")
    publish(store, b"second")
    store.close()
    store = open_store(tmp_path, keep_versions=2)
    publish(store, b"third")
    blob = store.open(2, Precision.FULL)
    blob.verify()
    publish(store, b"fourth")
    assert 2 not in store.catalog.versions
    assert blob.read_disk(100) == b"second"
    blob.close()


def test_publisher_superseded_while_it_sends_is_refused_at_the_end(tmp_path: Path, open_store: OpenStore) -> None:
    """The bytes of the older publisher leave nothing."""
    store = open_store(tmp_path)
    store.acquire_fencing_token()
    upload = store.begin(request_of(b"full"))
    upload.write(b"full")
    store.acquire_fencing_token()
    with pytest.raises(FailedPrecondition, match="superseded"):
        store.commit(upload, NOON)
    upload.discard()
    assert names(tmp_path) == set()
    assert store.catalog.newest is None


def test_repeated_publish_is_answered_with_the_stored_version(tmp_path: Path, open_store: OpenStore) -> None:
    """The check finds the version a lost answer was about, even after a restart."""
    store = open_store(tmp_path)
    store.acquire_fencing_token()
    request = request_of(b"full", b"half")
    version = store_request(store, request, b"fullhalf")
    assert store.check(request) == version
    store.close()
    assert open_store(tmp_path).check(request) == version


@given(cuts=st.lists(st.integers(0, 8), max_size=4))
def test_pieces_may_be_cut_anywhere(cuts: list[int]) -> None:
    """The bytes of two encodings are the same however they were cut into pieces."""
    with TemporaryDirectory() as folder, mock.patch("os.fsync"):
        store = small_store(Path(folder))
        store.acquire_fencing_token()
        upload = store.begin(request_of(b"full", b"half"))
        edges = [0, *sorted(cuts), 8]
        for start, end in itertools.pairwise(edges):
            upload.write(b"fullhalf"[start:end])
        store.commit(upload, NOON)
        assert (read(store, 1), read(store, 1, Precision.HALF)) == (b"full", b"half")
        store.close()


def test_folder_serves_one_server_only(tmp_path: Path, open_store: OpenStore) -> None:
    """A second server on the folder is refused until the first closes."""
    store = open_store(tmp_path)
    with pytest.raises(FatalError, match=naming(tmp_path)):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_folder_that_cannot_be_made_is_fatal(tmp_path: Path, open_store: OpenStore) -> None:
    """The message names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FatalError, match=naming(tmp_path / "file")):
        open_store(tmp_path / "file" / "params")
