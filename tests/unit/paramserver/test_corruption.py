"""What a restart makes of torn, flipped, missing and unfinished files, and of crashes at any moment."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.damage import empty, flip, tear
from tests.support.naming import naming
from tests.support.publishing import OpenStore, names, publish, read, small_store
from tidemill.errors import DataLoss, FatalError
from tidemill.params.document import seal, unseal
from tidemill.params.version import Precision
from tidemill.services.paramserver.version_files import VersionFiles
from tidemill.services.paramserver.version_store import VersionStore


def _three_versions(folder: Path) -> None:
    store = small_store(folder)
    for blob in (b"one", b"two", b"three"):
        publish(store, blob, b"half")
    store.set_tag("best", 2)
    store.close()


@pytest.mark.parametrize("kind", ["full.safetensors", "half.safetensors"])
@pytest.mark.parametrize("corrupt", [flip, tear, empty, Path.unlink])
def test_corrupt_newest_version_is_skipped_and_its_number_never_reused(
    tmp_path: Path, open_store: OpenStore, kind: str, corrupt: Callable[[Path], None]
) -> None:
    """The version before is the newest again; the next publish takes a number never seen."""
    _three_versions(tmp_path)
    corrupt(tmp_path / f"0000000003.{kind}")
    store = open_store(tmp_path)
    assert store.catalog.newest is not None
    assert store.catalog.newest.version == 2
    assert read(store, 2) == b"two"
    assert publish(store, b"four").version == 4
    assert store.corrupt_versions == 1
    assert (tmp_path / "damaged").is_dir()


@pytest.mark.parametrize("copy", ["json", "copy.json"])
@pytest.mark.parametrize("corrupt", [flip, tear, empty, Path.unlink])
def test_one_corrupt_copy_of_a_description_loses_nothing(
    tmp_path: Path, open_store: OpenStore, copy: str, corrupt: Callable[[Path], None]
) -> None:
    """The version is served and tagged as before, both copies are whole again, and the corruption is counted once."""
    _three_versions(tmp_path)
    corrupt(tmp_path / f"0000000002.{copy}")
    store = open_store(tmp_path)
    assert (store.catalog.all_tags, read(store, 2)) == ({"best": 2, "latest": 3}, b"two")
    # A folder of an earlier version has no second copy.
    assert store.corrupt_versions == (0 if (copy, corrupt) == ("copy.json", Path.unlink) else 1)
    assert len({(tmp_path / f"0000000002.{name}").read_bytes() for name in ("json", "copy.json")}) == 1
    store.close()
    assert open_store(tmp_path).corrupt_versions == 0


@pytest.mark.parametrize("owner, name", [(VersionFiles, "open"), (Path, "read_bytes")])
def test_version_that_cannot_be_read_now_is_not_corrupt(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """The start fails and changes nothing; the next one has every version and tag."""
    _three_versions(tmp_path)
    before = names(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(FatalError, match=naming(str(tmp_path), "Input/output error")):
            small_store(tmp_path)
    assert names(tmp_path) == before
    store = open_store(tmp_path)
    assert (list(store.catalog.versions), store.catalog.all_tags) == ([1, 2, 3], {"best": 2, "latest": 3})
    assert store.corrupt_versions == 0


def test_version_without_any_description_is_corrupt_not_unfinished(tmp_path: Path, open_store: OpenStore) -> None:
    """Its encodings are set aside as they are, and it is counted; a second restart finds a clean folder."""
    _three_versions(tmp_path)
    for name in ("json", "copy.json"):
        (tmp_path / f"0000000002.{name}").unlink()
    store = open_store(tmp_path)
    assert (tmp_path / "damaged" / "0000000002.full.safetensors").read_bytes() == b"two"
    assert (store.corrupt_versions, list(store.catalog.versions)) == (1, [1, 3])
    assert store.catalog.all_tags == {"latest": 3}
    store.close()
    assert open_store(tmp_path).corrupt_versions == 0


def test_tagged_version_of_which_nothing_is_left_is_counted(tmp_path: Path, open_store: OpenStore) -> None:
    """A tag is never dropped unnoticed."""
    _three_versions(tmp_path)
    for path in tmp_path.glob("0000000002.*"):
        path.unlink()
    store = open_store(tmp_path)
    assert (store.corrupt_versions, store.catalog.all_tags) == (1, {"latest": 3})


def test_without_numbers_nothing_counts_as_unfinished(tmp_path: Path, open_store: OpenStore) -> None:
    """When both copies of the numbers are lost, encodings without a description are set aside, not deleted."""
    _three_versions(tmp_path)
    for name in ("state.json", "state.copy.json", "0000000003.json", "0000000003.copy.json"):
        (tmp_path / name).unlink()
    store = open_store(tmp_path)
    assert (tmp_path / "damaged" / "0000000003.full.safetensors").read_bytes() == b"three"
    assert publish(store, b"four").version == 4


def test_crash_at_any_moment_of_a_removal_is_no_corruption(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that was being forgotten is gone or still whole; nothing of it is taken for a loss."""
    for moment in range(1, 20):
        folder = tmp_path / str(moment)
        store = small_store(folder)
        publish(store, b"old")
        publish(store, b"new")
        store.close()
        with monkeypatch.context() as patches:
            _crash_at(patches, moment)
            try:
                small_store(folder, keep_versions=1).close()  # forgets the older one
                ended = True
            except _Crash:
                ended = False
        store = open_store(folder, keep_versions=1)
        assert (store.corrupt_versions, list(store.catalog.versions)) == (0, [2])
        assert not list(folder.glob("0000000001*"))
        if ended:
            break
    assert ended
    assert moment > 5


def test_corruption_is_counted_once_and_the_number_stays_taken(tmp_path: Path, open_store: OpenStore) -> None:
    """A second restart finds a clean folder."""
    _three_versions(tmp_path)
    flip(tmp_path / "0000000003.full.safetensors")
    open_store(tmp_path).close()
    store = open_store(tmp_path)
    assert store.corrupt_versions == 0
    assert publish(store, b"four").version == 4


def test_newest_files_that_vanish_do_not_free_their_number(tmp_path: Path, open_store: OpenStore) -> None:
    """The state remembers the greatest number even when no file bears it any more."""
    _three_versions(tmp_path)
    for path in tmp_path.glob("0000000003.*"):
        path.unlink()
    store = open_store(tmp_path)
    assert publish(store, b"four").version == 4


@pytest.mark.parametrize("copy", ["state.json", "state.copy.json", "tags.json", "tags.copy.json"])
@pytest.mark.parametrize("corrupt", [flip, tear, empty, Path.unlink])
def test_one_corrupt_copy_of_the_state_loses_nothing(
    tmp_path: Path, open_store: OpenStore, copy: str, corrupt: Callable[[Path], None]
) -> None:
    """Tags, fencing token and numbers come from the other copy, and both are whole again."""
    _three_versions(tmp_path)
    corrupt(tmp_path / copy)
    store = open_store(tmp_path)
    assert store.catalog.all_tags == {"best": 2, "latest": 3}
    assert store.catalog.fencing_token == 1
    assert store.corrupt_versions == (0 if corrupt is Path.unlink else 1)
    store.acquire_fencing_token()
    store.set_tag("best", 2)
    for names_of_copies in (("state.json", "state.copy.json"), ("tags.json", "tags.copy.json")):
        assert len({(tmp_path / name).read_bytes() for name in names_of_copies}) == 1


def test_losing_both_copies_of_the_numbers_keeps_versions_and_shuts_out_old_publishers(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """A fencing token that may have been handed out is skipped, and the tags, which have a document too, stay."""
    _three_versions(tmp_path)
    for name in ("state.json", "state.copy.json"):
        flip(tmp_path / name)
    store = open_store(tmp_path)
    assert (store.corrupt_versions, store.catalog.all_tags) == (2, {"best": 2, "latest": 3})
    assert store.acquire_fencing_token().fencing_token == 3
    assert publish(store, b"four").version == 4


def test_losing_both_copies_of_the_tags_loses_nothing_else(tmp_path: Path, open_store: OpenStore) -> None:
    """Versions and fencing token stay; the corruption is counted once."""
    _three_versions(tmp_path)
    for name in ("tags.json", "tags.copy.json"):
        flip(tmp_path / name)
    store = open_store(tmp_path)
    assert (store.corrupt_versions, store.catalog.fencing_token) == (2, 1)
    assert store.catalog.all_tags == {"latest": 3}
    store.close()
    assert open_store(tmp_path).corrupt_versions == 0


def test_tag_on_a_corrupt_version_is_dropped(tmp_path: Path, open_store: OpenStore) -> None:
    """A tag never points at something that cannot be served."""
    _three_versions(tmp_path)
    flip(tmp_path / "0000000002.full.safetensors")
    assert open_store(tmp_path).catalog.all_tags == {"latest": 3}


def test_version_corrupted_while_the_server_runs_is_not_served(tmp_path: Path, open_store: OpenStore) -> None:
    """Checksums are compared on every read from disk, before the first byte is given out."""
    store = open_store(tmp_path)
    publish(store, b"one")
    publish(store, b"two")
    flip(tmp_path / "0000000001.full.safetensors")
    with pytest.raises(DataLoss, match=naming("SHA-256")):
        read(store, 1)
    tear(tmp_path / "0000000001.full.safetensors")
    with pytest.raises(DataLoss, match=naming("1 3")):
        read(store, 1)


def test_unfinished_files_are_removed_and_strangers_left_alone(tmp_path: Path, open_store: OpenStore) -> None:
    """Leftovers of a crash go; files the store did not make stay."""
    _three_versions(tmp_path)
    before = names(tmp_path)
    for name in ("incoming/full.safetensors", "0000000004.full.safetensors", "0000000004.json.tmp"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    store = open_store(tmp_path)
    assert names(tmp_path) == before | {"notes.txt"}
    assert store.corrupt_versions == 0
    assert publish(store, b"four").version in (4, 5)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"sha256": 1, "content": 2}', b"\xff", b"[" * 9999])
def test_what_is_not_sealed_is_corruption(data: bytes) -> None:
    """Any bytes at all are either a sealed document or `DataLoss`."""
    with pytest.raises(DataLoss):
        unseal(data, "here")
    assert unseal(seal({"a": [1, "é"]}), "here") == {"a": [1, "é"]}


class _Crash(BaseException):
    """The process ends here."""


def _crash_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> list[int]:
    """Raise `_Crash` instead of the `moment`-th flush, rename or removal; count them."""
    calls = [0]

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            calls[0] += 1
            if calls[0] >= moment:  # what is dead does nothing more
                raise _Crash
            return original(*arguments, **named)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return calls


def _crash_while(
    monkeypatch: pytest.MonkeyPatch, folder: Path, change: Callable[[VersionStore], object], moment: int
) -> bool:
    """Run a change on the folder's store and crash in it; return whether it ended first."""
    store = small_store(folder, keep_versions=2)
    with monkeypatch.context() as patches:
        _crash_at(patches, moment)
        try:
            change(store)
        except _Crash:
            store.close()
            return False
    store.close()
    return True


def test_crash_at_any_moment_of_a_publish_leaves_the_old_or_the_new_version(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each crash the newest version is whole and at least the acknowledged one, and nothing is corrupt."""
    store = open_store(tmp_path, keep_versions=2)
    newest = publish(store, b"0", b"h").version
    store.close()
    survivors = set()
    for moment in range(1, 100):
        change = partial(publish, full=b"%d" % moment, half=b"h")
        ended = _crash_while(monkeypatch, tmp_path, change, moment)
        store = open_store(tmp_path, keep_versions=2)
        assert store.corrupt_versions == 0
        assert store.catalog.newest is not None
        found = store.catalog.newest.version
        assert found >= newest + ended
        content = read(store, found)
        assert (content == b"%d" % moment) == (found > newest)
        assert read(store, found, Precision.HALF) == b"h"
        survivors.add(found > newest)
        newest = found
        store.close()
        if ended:
            break
    assert ended
    assert survivors == {False, True}


def test_crash_at_any_moment_of_a_new_fencing_token_never_repeats_one(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fencing token that was answered is never handed out again."""
    answered = 0
    for moment in range(1, 20):
        ended = _crash_while(monkeypatch, tmp_path, lambda s: s.acquire_fencing_token(), moment)
        store = open_store(tmp_path)
        fencing_token = store.acquire_fencing_token().fencing_token
        assert fencing_token > answered + ended
        answered = fencing_token
        store.close()
        if ended:
            break
    assert ended
