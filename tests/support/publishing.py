"""Drafts and publishes in one line, for the tests of the store."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tidemill.params.version import Encoding, ParamsMetadata, Precision, Version
from tidemill.services.paramserver.upload import PublishRequest
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


def request_of(full: bytes, half: bytes = b"", *, fencing_token: int = 1, base_version: int = 0) -> PublishRequest:
    """Announce a version with one or two encodings."""
    encodings = (encoding(full), *([encoding(half, Precision.HALF)] if half else []))
    return PublishRequest(fencing_token, base_version, METADATA, encodings)


def store_request(store: VersionStore, request: PublishRequest, data: bytes) -> Version:
    """Publish a request with these bytes, the way the server does it."""
    assert store.check(request) is None
    upload = store.begin(request)
    try:
        upload.write(data)
        return store.commit(upload, NOON)
    finally:
        upload.discard()


def publish(store: VersionStore, full: bytes, half: bytes = b"") -> Version:
    """Publish the next version as the current publisher; the first call acquires a fencing token."""
    if store.catalog.fencing_token == 0:
        store.acquire_fencing_token()
    newest = store.catalog.newest.version if store.catalog.newest else 0
    request = request_of(full, half, fencing_token=store.catalog.fencing_token, base_version=newest)
    return store_request(store, request, full + half)


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
