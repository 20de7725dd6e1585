"""Versions, tags and fencing tokens on disk.

The folder:

    state.json, state.copy.json     newest fencing token and greatest version number; the same document twice
    tags.json, tags.copy.json       where tags point, likewise; written only when a tag is set
    0000000012.json                 description of version 12
    0000000012.copy.json            the same once more
    0000000012.full.safetensors     its encodings, exactly as they were published
    0000000012.half.safetensors
    incoming/                       encodings that are still being received; emptied by a restart
    damaged/                        versions that failed their checksum; never served, kept for inspection
    lock                            held while a server uses the folder

JSON files hold {"sha256": checksum of the content, "content": {...}}. A version exists when its description
has its name; its encodings are on disk by then, and it is acknowledged when the state knows its number too.
Every file is written under another name, flushed and renamed, so a crash leaves it whole or absent. A
description holds the size and SHA-256 of each encoding.
"""

from __future__ import annotations

import datetime
import errno
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import structlog

from tidemill.atomic_files import TEMPORARY, make_folder, remove, sync_folder, write_all_atomically
from tidemill.errors import FatalError
from tidemill.file_lock import open_locked, unlock
from tidemill.params.version import Precision, Version
from tidemill.services.paramserver.catalog import Catalog
from tidemill.services.paramserver.state_file import State, StateFile
from tidemill.services.paramserver.upload import PublishRequest, Upload
from tidemill.services.paramserver.version_files import IntactBlobs, Scan, StoredBlob, VersionFiles, full_disk_reported

_log = structlog.get_logger()


class VersionStore:
    """The durable state of the parameter server; plain and synchronous, without clocks.

    `acquire_fencing_token`, `begin`, `commit` and `set_tag` change it and must be called one at a time. `catalog`,
    `check` and `open` may be called at any time from any thread: they see the state before or after a change,
    never between.
    """

    def __init__(
        self, folder: Path, *, keep_versions: int, max_blob_bytes: int, max_tags: int, max_fetch_bytes: int
    ) -> None:
        """Open a folder, creating it if needed, and recover what it holds.

        Args:
            folder: Where everything is kept.
            keep_versions: Newest versions kept, at least 1; tagged versions are kept besides.
            max_blob_bytes: Largest encoding, in bytes.
            max_tags: Most tags, `latest` not counted; each keeps a version.
            max_fetch_bytes: Half of it is the largest newest version that is held in memory for its readers; the
                disk's own cache serves larger ones. Also the most disk that removed versions take which are still read.

        Raises:
            FatalError: The folder cannot be used or read, or another server uses it.
            ResourceExhausted: The disk is full and the state must be repaired first.
        """
        self.folder, self._keep_versions = folder, keep_versions
        self._max_blob_bytes, self._max_tags, self._max_fetch_bytes = max_blob_bytes, max_tags, max_fetch_bytes
        self._incoming = folder / "incoming"
        self._files, self._state_file = VersionFiles(folder), StateFile(folder)
        self.catalog = Catalog()
        """What the store holds now."""
        self._intact = IntactBlobs(max_fetch_bytes // 2)
        self._reading: weakref.WeakSet[StoredBlob] = weakref.WeakSet()
        self._reading_lock = threading.Lock()
        self.corrupt_versions = 0
        """Versions, descriptions and state files found corrupt or lost when the folder was opened."""
        self._has_doubtful_tags = False
        self._lock, self._is_closed = _lock(folder), False
        try:
            with full_disk_reported():
                self._incoming.mkdir(exist_ok=True)
                for path in [*self._incoming.iterdir(), *folder.glob(f"*{TEMPORARY}")]:
                    remove(path)
                sync_folder(folder)  # a killed process may leave names that are not on disk yet, and clients see them
                self._recover()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise FatalError(f"cannot use the folder {folder}: {error}") from error
            raise

    def acquire_fencing_token(
        self, last_known_token: int = 0, last_known_version: int = 0, held_token: int = 0
    ) -> Catalog:
        """Hand out the next fencing token, see `Catalog.with_next_token`; return the catalog once it is on disk.

        Raises:
            FailedPrecondition, InvalidArgument: See `Catalog.with_next_token`.
            ResourceExhausted: The disk is full.
        """
        catalog = self.catalog.with_next_token(last_known_token, last_known_version, held_token)
        self._write(self._numbers(catalog))
        self.catalog = catalog
        return catalog

    def set_tag(self, tag: str, number: int) -> None:
        """Point a tag at a version; it is on disk when this returns.

        Raises:
            NotFound, InvalidArgument, ResourceExhausted: See `Catalog.with_tag`.
            ResourceExhausted: The disk is full.
        """
        catalog = self.catalog.with_tag(tag, number, max_tags=self._max_tags)
        self._has_doubtful_tags = True
        self._write(self._state_file.tags(catalog.tags))
        self._has_doubtful_tags = False
        self.catalog = catalog
        self._prune()

    def check(self, request: PublishRequest) -> Version | None:
        """Return the version a request repeats, or None if it may become the next one.

        Raises:
            InvalidArgument, ResourceExhausted: See `PublishRequest.check`.
            FailedPrecondition: The publisher is stale, see `Catalog.check_publisher`.
        """
        request.check(self._max_blob_bytes)
        repeated = self.catalog.repeated(request)
        if repeated is None:
            self.catalog.check_publisher(request)
        return repeated

    def begin(self, request: PublishRequest) -> Upload:
        """Return the destination of a checked request's bytes. Only one may be in use at a time."""
        return Upload(self._incoming, request)

    def commit(self, upload: Upload, created: datetime.datetime) -> Version:
        """Make a received request the next version; it is on disk when this returns.

        Raises:
            FailedPrecondition: The publisher was superseded meanwhile.
            InvalidArgument, DataLoss: The bytes are not what was declared, see `Upload.finish`.
            ResourceExhausted: The disk is full; nothing was stored.
        """
        request = upload.request
        self.catalog.check_publisher(request)
        upload.finish()
        version = Version(
            version=self.catalog.high_water + 1,
            base_version=request.base_version,
            fencing_token=request.fencing_token,
            created=created,
            metadata=request.metadata,
            encodings=request.encodings,
        )
        catalog = self.catalog.with_version(version)
        with full_disk_reported():
            self._files.write(version, upload.paths, self._numbers(catalog) | self._settled_tags())
        self._has_doubtful_tags = False
        self._intact.replace(version)
        self.catalog = catalog
        self._prune()
        return version

    def open(self, number: int, precision: Precision) -> StoredBlob:
        """Open an encoding of a version, the full one when it has no such encoding.

        Raises:
            NotFound: There is no such version, or no longer.
        """
        encoding = self.catalog.find(number).encoding(precision)
        blob = StoredBlob(number, encoding, self._files.open(number, encoding.precision), self._intact)
        with self._reading_lock:
            self._reading.add(blob)
        return blob

    def file(self, version: Version, precision: Precision) -> Path:
        """Return the absolute path of an encoding, the full one when the version has no such encoding."""
        return self._files.path(version.version, version.encoding(precision).precision.value).absolute()

    def check_folder(self) -> None:
        """Raise FileNotFoundError if the folder is not there any more, or another is in its place."""
        if not os.path.samestat((self.folder / "lock").stat(), os.fstat(self._lock)):
            raise FileNotFoundError(errno.ENOENT, "another folder is in its place", str(self.folder))

    def close(self) -> None:
        """Unlock the folder. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            unlock(self._lock)

    def _recover(self) -> None:
        state, tags, corrupt_copies = self._state_file.read()
        scan = self._files.scan(None if state is None else state.high_water)
        if state is None:
            state = _rebuilt(scan.versions)
        corrupt = self._corrupt(scan, tags)
        lost = {tag: number for tag, number in tags.items() if number not in scan.versions}
        for tag, number in lost.items():
            _log.error("tag dropped, its version is lost", tag=tag, version=number)
        self.corrupt_versions = len({*corrupt, *lost.values()}) + corrupt_copies
        self.catalog = Catalog(
            versions=scan.versions,
            tags={tag: number for tag, number in tags.items() if tag not in lost},
            fencing_token=max([state.fencing_token, *(version.fencing_token for version in scan.versions.values())]),
            high_water=max(state.high_water, scan.high_water),
        )
        recovered = (self.catalog.fencing_token, self.catalog.high_water)
        if corrupt_copies or lost or recovered != (state.fencing_token, state.high_water):
            self._write(self._numbers(self.catalog) | self._state_file.tags(self.catalog.tags))
        self._prune()
        self._intact.replace(self.catalog.newest)

    def _corrupt(self, scan: Scan, tags: Mapping[str, int]) -> set[int]:
        """Set corrupt versions aside; return their numbers, and those whose description was repaired.

        One that newer versions and tags leave no place for is not lost: it was removed, and the power failed before the
        disk had forgotten all of its names.
        """
        expired = {
            number
            for number in scan.corrupt.keys() | scan.repaired
            if number not in tags.values() and sum(newer > number for newer in scan.versions) >= self._keep_versions
        }
        for number, reason in scan.corrupt.items():
            if number in expired:
                self._files.remove(number)
            else:
                self._files.set_aside(number, reason)
        return {*scan.corrupt, *scan.repaired} - expired

    def _write(self, contents: Mapping[Path, bytes]) -> None:
        with full_disk_reported():
            write_all_atomically(contents)

    def _numbers(self, catalog: Catalog) -> dict[Path, bytes]:
        return self._state_file.numbers(catalog.fencing_token, catalog.high_water)

    def _settled_tags(self) -> dict[Path, bytes]:
        """Return the tags to be written before versions are removed; nothing if the disk is known to have them.

        A refused tag may have its name on the disk already, and the version where the tag should still point must not
        be the only one that is kept.
        """
        return self._state_file.tags(self.catalog.tags) if self._has_doubtful_tags else {}

    def _prune(self) -> None:
        expired = self.catalog.expired(self._keep_versions)
        self.catalog = self.catalog.without(expired)
        for number in expired:
            self._files.remove(number)
            self._intact.forget(number)
        self._bound_reads()

    def _bound_reads(self) -> None:
        """Close the oldest of the removed encodings that are still read until the rest fits the limit."""
        removed: dict[tuple[int, str], list[StoredBlob]] = {}
        with self._reading_lock:
            reading = list(self._reading)
        for blob in reading:
            if blob.number not in self.catalog.versions and not blob.closed:
                removed.setdefault((blob.number, blob.encoding.precision.value), []).append(blob)
        kept_bytes = sum(blobs[0].encoding.size_bytes for blobs in removed.values())
        for key in sorted(removed):
            if kept_bytes <= self._max_fetch_bytes:
                return
            kept_bytes -= removed[key][0].encoding.size_bytes
            for blob in removed[key]:
                blob.close()


def _rebuilt(versions: Mapping[int, Version]) -> State:
    """Return an initial state, or one recovered from the versions when both copies are lost.

    A fencing token handed out but never published with is then unknown, so the next one is skipped: at worst the
    current publisher is refused, but never are two accepted.
    """
    if not versions:
        return State(fencing_token=0, high_water=0)
    _log.error("state files lost: version numbers were recovered from the version files")
    fencing_token = 1 + max(version.fencing_token for version in versions.values())
    return State(fencing_token=fencing_token, high_water=max(versions))


def _lock(folder: Path) -> int:
    try:
        make_folder(folder)
        descriptor = open_locked(folder / "lock")
    except OSError as error:
        raise FatalError(f"cannot use the folder {folder}: {error.strerror}") from error
    if descriptor is None:
        raise FatalError(f"another parameter server uses the folder {folder}; stop it, or choose another run.name")
    return descriptor
