"""A full disk: clear refusals, nothing half-stored, recovery by itself."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.naming import because, naming
from tests.support.publishing import OpenStore, names, publish, read
from tidemill.errors import Reason, ResourceExhausted
from tidemill.services.paramserver.version_store import VersionStore


def _fill_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> Callable[[], bool]:
    """Refuse every flush from the `moment`-th on for lack of space; return whether one was, as a function."""
    flush, calls = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] >= moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return lambda: calls[0] >= moment


def _change_until_it_fits(
    monkeypatch: pytest.MonkeyPatch, store: VersionStore, folder: Path, change: Callable[[], object]
) -> int:
    """Try a change with space running out ever later; refusals leave no trace. Return their number."""
    for moment in range(1, 20):
        before, files = store.catalog, names(folder)
        with monkeypatch.context() as patches:
            is_full = _fill_at(patches, moment)
            try:
                change()
            except ResourceExhausted:
                pass
            else:
                assert not is_full()
                return moment - 1
        assert store.catalog == before
        assert names(folder) == files
    raise AssertionError("the change never fitted")


def test_disk_that_fills_up_during_a_publish_stores_nothing(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write is refused, versions and files stay as they were; with space the publish works."""
    store = open_store(tmp_path)
    publish(store, b"old")
    refusals = _change_until_it_fits(monkeypatch, store, tmp_path, lambda: publish(store, b"new", b"half"))
    assert refusals == 7  # two encodings, two copies of the description, two of the state, the folder
    assert [read(store, number) for number in store.catalog.versions] == [b"old", b"new"]


def test_disk_that_fills_up_during_a_tag_or_fencing_token_changes_nothing(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is replaced as a whole or not at all."""
    store = open_store(tmp_path)
    publish(store, b"old")
    assert _change_until_it_fits(monkeypatch, store, tmp_path, lambda: store.set_tag("best", 1)) == 3
    assert _change_until_it_fits(monkeypatch, store, tmp_path, store.acquire_fencing_token) == 3


def test_disk_filled_by_pieces_is_reported_at_the_piece(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that the disk refuses is `ResourceExhausted` too."""
    store = open_store(tmp_path)
    publish(store, b"old")
    path_open = Path.open

    def refuse(path: Path, *arguments: object, **named: object) -> object:
        if path.parent.name == "incoming":
            raise OSError(errno.EDQUOT, "quota exceeded")
        return path_open(path, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ResourceExhausted, match=naming("disk"), check=because(Reason.DISK_FULL)):
        publish(store, b"new")
    monkeypatch.undo()
    assert publish(store, b"new").version == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_real_disk_without_space_refuses_and_recovers(small_disk: Path, open_store: OpenStore) -> None:
    """On a disk that is really full, publishing fails cleanly, reads and restarts continue, space heals it."""
    store = open_store(small_disk, max_blob_bytes=10**6)
    publish(store, b"a" * 40_000)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 20_000)
    files = names(small_disk)
    with pytest.raises(ResourceExhausted, match=naming("disk")):
        publish(store, b"b" * 80_000)
    assert names(small_disk) == files
    assert len(read(store, 1)) == 1000
    store.close()
    store = open_store(small_disk, max_blob_bytes=10**6)
    filler.unlink()
    assert publish(store, b"c" * 40_000).version == 2
    store.close()
