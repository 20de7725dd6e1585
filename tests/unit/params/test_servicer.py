"""The servicer without a network, where the reader's pace can be set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from services.paramserver.announcer import Announcer
from services.paramserver.metrics import Metrics
from services.paramserver.servicer import ParamServicer
from services.paramserver.writer import Writer
from tests.unit.params.publishing import NOON, OpenStore, draft_of
from tidemill.params.v1 import params_pb2 as pb

_CONTEXT: Any = None


async def _one(blob: bytes) -> AsyncIterator[bytes]:
    yield blob


async def test_watcher_that_reads_slowly_skips_to_the_newest(tmp_path: Path, open_store: OpenStore) -> None:
    """Of five versions published between two reads, only the last is announced."""
    store, announcer = open_store(tmp_path), Announcer()
    writer = Writer(store, announcer, clock=lambda: NOON)
    servicer = ParamServicer(store, writer, announcer, Metrics(lambda: store.catalog, CollectorRegistry()))
    await writer.open_generation()
    watch: Any = servicer.Watch(pb.WatchRequest(), _CONTEXT)
    seen = []
    for base_version in range(6):
        blob = b"%d" % base_version
        await writer.publish(draft_of(blob, base_version=base_version), _one(blob))
        if base_version in (0, 5):
            seen.append((await anext(watch)).version.version)
    await watch.aclose()
    writer.close()
    assert seen == [1, 6]


async def test_fetch_by_tag_survives_the_removal_of_what_it_found(tmp_path: Path, open_store: OpenStore) -> None:
    """When retention removes a version between finding and opening it, the tag's next version is sent."""
    store, announcer = open_store(tmp_path, keep_versions=1), Announcer()
    writer = Writer(store, announcer, clock=lambda: NOON)
    servicer = ParamServicer(store, writer, announcer, Metrics(lambda: store.catalog, CollectorRegistry()))
    await writer.open_generation()
    await writer.publish(draft_of(b"one"), _one(b"one"))
    found_before, tagged = store.catalog.newest, servicer._tagged
    await writer.publish(draft_of(b"two", base_version=1), _one(b"two"))
    answers = [found_before]
    servicer._tagged = lambda *a, **n: answers.pop() if answers else tagged(*a, **n)  # type: ignore[method-assign]
    sent = [response async for response in servicer.Fetch(pb.FetchRequest(tag="latest"), _CONTEXT)]
    writer.close()
    assert [sent[0].header.version.version, sent[1].piece] == [2, b"two"]
