"""The servicer without a network, where the reader's pace can be set."""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.naming import because, naming
from tests.support.publishing import NOON, OpenStore, request_of
from tidemill.errors import DataLoss, Reason, Unavailable
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.version import Version
from tidemill.services.paramserver.catalog import Catalog
from tidemill.services.paramserver.metrics import Metrics
from tidemill.services.paramserver.servicer import ParamServicer
from tidemill.services.paramserver.upload import Upload
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.paramserver.writer import StoreWriter

_CONTEXT: Any = None


def _servicer(
    store: VersionStore, writer: StoreWriter, notifier: VersionNotifier, fetch_timeout_s: float = 30.0
) -> ParamServicer:
    """Return a servicer that sends one version at a time."""
    metrics = Metrics(lambda: store.catalog, CollectorRegistry())
    return ParamServicer(store, writer, notifier, metrics, max_fetch_bytes=1, fetch_timeout_s=fetch_timeout_s)


async def _one(blob: bytes) -> AsyncIterator[bytes]:
    yield blob


async def test_watcher_that_reads_slowly_skips_to_the_newest(tmp_path: Path, open_store: OpenStore) -> None:
    """Of five versions published between two reads, only the last is announced."""
    store, notifier = open_store(tmp_path), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    servicer = _servicer(store, writer, notifier)
    await writer.acquire_fencing_token()
    watch: Any = servicer.Watch(pb.WatchRequest(), _CONTEXT)
    seen = []
    for base_version in range(6):
        blob = b"%d" % base_version
        await writer.publish(request_of(blob, base_version=base_version), _one(blob))
        if base_version in (0, 5):
            seen.append((await anext(watch)).version.version)
    await watch.aclose()
    writer.close()
    assert seen == [1, 6]


async def test_fetch_by_tag_survives_the_removal_of_what_it_found(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When retention removes a version between finding and opening it, the tag's next version is sent."""
    store, notifier = open_store(tmp_path, keep_versions=1), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    servicer = _servicer(store, writer, notifier)
    await writer.acquire_fencing_token()
    await writer.publish(request_of(b"one"), _one(b"one"))
    found_before, tagged = store.catalog.newest, Catalog.tagged
    await writer.publish(request_of(b"two", base_version=1), _one(b"two"))
    answers = [found_before]
    monkeypatch.setattr(Catalog, "tagged", lambda *a: answers.pop() if answers else tagged(*a))
    sent = [response async for response in servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)]
    writer.close()
    assert [sent[0].header.version.version, sent[1].piece] == [2, b"two"]


async def test_publish_retried_while_the_first_still_commits_is_the_same_version(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that left and calls again gets the version that its first call makes, which is counted once."""
    store, notifier = open_store(tmp_path), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    await writer.acquire_fencing_token()
    is_committing, may_commit, commit = threading.Event(), threading.Event(), store.commit

    def slow_commit(upload: Upload, created: datetime.datetime) -> Version:
        is_committing.set()
        may_commit.wait(30)
        return commit(upload, created)

    monkeypatch.setattr(store, "commit", slow_commit)
    first = asyncio.ensure_future(writer.publish(request_of(b"one"), _one(b"one")))
    await asyncio.to_thread(is_committing.wait, 30)
    first.cancel()
    await asyncio.wait([first])
    retry = asyncio.ensure_future(writer.publish(request_of(b"one"), _one(b"one")))
    await asyncio.sleep(0)
    may_commit.set()
    version, is_new = await retry
    writer.close()
    assert (version.version, is_new) == (1, False)
    assert sorted(store.catalog.versions) == [1]


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_disk_that_refuses_a_publish_is_named(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """It is `Unavailable`, so that the publisher tries again; the server stays, and stores the next."""
    store = open_store(tmp_path)
    writer = StoreWriter(store, VersionNotifier(), clock=lambda: NOON)
    await writer.acquire_fencing_token()

    def refuse(descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", refuse)
        with pytest.raises(Unavailable, match=os.strerror(error)):
            await writer.publish(request_of(b"one"), _one(b"one"))
    assert not writer.lost.is_set()
    version, _ = await writer.publish(request_of(b"one"), _one(b"one"))
    writer.close()
    assert version.version == 1


async def test_folder_that_another_host_replaced_ends_the_server(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS its open files are stale from then on."""
    writer = StoreWriter(open_store(tmp_path), VersionNotifier(), clock=lambda: NOON)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patches:
        patches.setattr(os, "fstat", refuse)
        with pytest.raises(Unavailable, match=naming(f"{tmp_path} replaced")):
            await writer.acquire_fencing_token()
    assert writer.lost.is_set()
    writer.close()


async def test_folder_in_whose_place_another_is_ends_the_server(tmp_path: Path, open_store: OpenStore) -> None:
    """As a backup that was copied there, which has all parts."""
    folder = tmp_path / "params"
    writer = StoreWriter(open_store(folder), VersionNotifier(), clock=lambda: NOON)
    shutil.copytree(folder, tmp_path / "backup")
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "backup").rename(folder)
    with pytest.raises(Unavailable, match=naming(f"{folder} replaced")):
        await writer.acquire_fencing_token()
    assert writer.lost.is_set()
    writer.close()


async def test_folder_that_is_lost_under_a_publish_ends_the_server(tmp_path: Path, open_store: OpenStore) -> None:
    """A part of it is enough: what is left is for a new start to look at."""
    store = open_store(tmp_path)
    writer = StoreWriter(store, VersionNotifier(), clock=lambda: NOON)
    await writer.acquire_fencing_token()
    (tmp_path / "incoming").rmdir()
    with pytest.raises(Unavailable, match=naming(f"{tmp_path} removed")):
        await writer.publish(request_of(b"one"), _one(b"one"))
    assert writer.lost.is_set()
    writer.close()


async def test_fetch_waits_for_its_fetch_slot(tmp_path: Path, open_store: OpenStore) -> None:
    """As many fetches are sent at a time as there is memory for; the next one begins when one of them ends."""
    store, notifier = open_store(tmp_path), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    servicer = _servicer(store, writer, notifier)
    await writer.acquire_fencing_token()
    await writer.publish(request_of(b"one"), _one(b"one"))
    first: Any = servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)
    assert (await anext(first)).header.version.version == 1
    second: Any = servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.aclose()
    assert (await waiting).header.version.version == 1
    await second.aclose()
    writer.close()


async def test_fetch_without_a_turn_in_time_is_unavailable(tmp_path: Path, open_store: OpenStore) -> None:
    """The wait is bounded, and the message names the setting."""
    store, notifier = open_store(tmp_path), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    servicer = _servicer(store, writer, notifier, fetch_timeout_s=0.01)
    await writer.acquire_fencing_token()
    await writer.publish(request_of(b"one"), _one(b"one"))
    first: Any = servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)
    await anext(first)
    second: Any = servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)
    with pytest.raises(Unavailable, match=naming("paramserver.max_fetch_bytes 1"), check=because(Reason.BUSY)):
        await anext(second)
    await first.aclose()
    writer.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("request_", [pb.FetchRequest(tag="latest"), pb.FetchRequest(version=1)])
async def test_fetch_of_a_version_whose_file_is_lost_is_data_loss(
    request_: pb.FetchRequest, tmp_path: Path, open_store: OpenStore
) -> None:
    """It is answered at once, by tag too: the tag still points at that version."""
    store, notifier = open_store(tmp_path), VersionNotifier()
    writer = StoreWriter(store, notifier, clock=lambda: NOON)
    servicer = _servicer(store, writer, notifier)
    await writer.acquire_fencing_token()
    await writer.publish(request_of(b"one"), _one(b"one"))
    (tmp_path / "0000000001.full.safetensors").unlink()
    fetch: Any = servicer.Fetch(request_, _CONTEXT)
    with pytest.raises(DataLoss, match=naming("version 1 full missing")):
        await anext(fetch)
    writer.close()
