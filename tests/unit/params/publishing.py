"""Drafts and publishes in one line, for the tests of the store."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tidemill.params.version import Encoding, ParamsMetadata, Precision, Version
from tidemill.services.paramserver.draft import Draft
from tidemill.services.paramserver.version_store import VersionStore

OpenStore = Callable[..., VersionStore]
"""What the fixture `open_store` is."""

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
METADATA = ParamsMetadata("sac", "Pendulum-v1", learner_steps=100, env_steps=400, config_digest="ab" * 32)


def small_store(
    folder: Path,
    *,
    keep_versions: int = 20,
    max_blob_bytes: int = 1000,
    max_tags: int = 10,
    max_fetch_bytes: int = 1000,
) -> VersionStore:
    """Open a store with small limits."""
    return VersionStore(
        folder,
        keep_versions=keep_versions,
        max_blob_bytes=max_blob_bytes,
        max_tags=max_tags,
        max_fetch_bytes=max_fetch_bytes,
    )


def encoding(blob: bytes, precision: Precision = Precision.FULL) -> Encoding:
    """Describe a blob."""
    return Encoding(precision, len(blob), hashlib.sha256(blob).digest())


def draft_of(full: bytes, half: bytes = b"", *, generation: int = 1, base_version: int = 0) -> Draft:
    """Announce a version with one or two encodings."""
    encodings = (encoding(full), *([encoding(half, Precision.HALF)] if half else []))
    return Draft(generation, base_version, METADATA, encodings)


def store_draft(store: VersionStore, draft: Draft, data: bytes) -> Version:
    """Publish a draft with these bytes, the way the server does it."""
    assert store.check(draft) is None
    incoming = store.begin(draft)
    try:
        incoming.write(data)
        return store.commit(incoming, NOON)
    finally:
        incoming.discard()


def publish(store: VersionStore, full: bytes, half: bytes = b"") -> Version:
    """Publish the next version as the current publisher; the first call opens a generation."""
    if store.catalog.generation == 0:
        store.open_generation()
    newest = store.catalog.newest.version if store.catalog.newest else 0
    draft = draft_of(full, half, generation=store.catalog.generation, base_version=newest)
    return store_draft(store, draft, full + half)


def read(store: VersionStore, number: int, precision: Precision = Precision.FULL) -> bytes:
    """Read a version as the server does: verified, then to the end."""
    with closing(store.open(number, precision)) as blob:
        data = blob.read_memory(1000)
        if data is None:
            blob.verify()
            data = blob.read_disk(1000)
        return data


def names(folder: Path) -> set[str]:
    """Names of the versions' files, `incoming/` included."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock" and not path.name.startswith(("state.", "tags."))
    }
