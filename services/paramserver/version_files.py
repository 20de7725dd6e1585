"""The files of each version in the store's folder: written, checked, opened, read, removed; the newest in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from tidemill.atomic_files import is_disk_full, is_there, remove, write_all_atomically
from tidemill.errors import DataLoss, FatalError, NotFound, Reason, ResourceExhausted, Unavailable
from tidemill.params.document import from_version, seal, to_version, unseal
from tidemill.params.version import Encoding, Precision, Version


class IntactBlobs:
    """Encodings that were found intact, each read once for all of its readers; those of the newest version in memory.

    Safe to use from several threads. A version that nobody asks for, or that its readers take from its files, is never
    read.
    """

    def __init__(self, max_bytes: int) -> None:
        """Hold versions of at most so many bytes, all encodings together; the disk's own cache serves larger ones."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._reading: dict[tuple[int, Precision], threading.Lock] = {}  # held so that many readers do not read it each
        self._blobs: dict[tuple[int, Precision], bytes] = {}
        self._files: dict[tuple[int, Precision], tuple[int, int, int]] = {}
        self._newest = 0

    def replace(self, newest: Version | None) -> None:
        """Let go of the former version's bytes; hold this one's from now on."""
        fits = newest is not None and sum(item.size_bytes for item in newest.encodings) <= self._max_bytes
        with self._lock:
            self._newest = newest.version if newest is not None and fits else 0
            self._blobs = {}

    def forget(self, number: int) -> None:
        """Forget a version that was removed."""
        for precision in Precision:
            self._files.pop((number, precision), None)
            self._reading.pop((number, precision), None)

    def get(self, number: int, precision: Precision) -> bytes | None:
        """Return an encoding of a version if it is held; never waits."""
        return self._blobs.get((number, precision))

    def check(self, number: int, encoding: Encoding, file: BinaryIO) -> None:
        """Check an encoding, unless its file was found intact and has not changed; hold the newest version's bytes.

        Args:
            number: Number of the version.
            encoding: Which of its encodings.
            file: Its file, at the beginning.

        Raises:
            DataLoss: It is truncated or has flipped bits.
        """
        key, status = (number, encoding.precision), os.fstat(file.fileno())
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        with self._reading.setdefault(key, threading.Lock()):
            if key in self._blobs or (number != self._newest and self._files.get(key) == seen):
                return
            verify(file, encoding)
            self._files[key] = seen
            blob = file.read() if number == self._newest else None
            with self._lock:
                if blob is not None and number == self._newest:
                    self._blobs = {**self._blobs, key: blob}


_NAME = re.compile(r"(\d{10,20})\.(json|copy\.json|removed|full\.safetensors|half\.safetensors)")
_DESCRIPTIONS = ("json", "copy.json")
_REMOVED = "removed"
_SET_ASIDE = "damaged"
_READ_BYTES = 1024 * 1024

_log = structlog.get_logger()


@dataclass(frozen=True)
class Scan:
    """Result of scanning the folder at startup.

    Attributes:
        versions: Intact versions by number, oldest first.
        corrupt: Versions by number that have lost bytes or names, though they may have been acknowledged, and which.
        repaired: Versions whose description was missing or corrupt and came from its copy.
        high_water: Greatest number in any file's name.
    """

    versions: Mapping[int, Version]
    corrupt: Mapping[int, str]
    repaired: frozenset[int]
    high_water: int


class VersionFiles:
    """All versions' files in one folder. Knows nothing of fencing tokens, tags or retention."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, number: int, kind: str) -> Path:
        """Return the file of a version's description (`json`, `copy.json`) or encoding (`full`, `half`)."""
        is_encoding = kind in (precision.value for precision in Precision)
        return self._folder / f"{number:010d}.{kind}{'.safetensors' if is_encoding else ''}"

    def write(self, version: Version, blobs: Mapping[Precision, Path], others: Mapping[Path, bytes]) -> None:
        """Move a version's finished encodings into place and write its description.

        Args:
            version: The version; the name of its description is what makes it exist. It is written twice.
            blobs: Its encodings, on the same disk and flushed to it.
            others: Further files to write with the description.

        Raises:
            OSError: The disk refused; the version does not exist.
        """
        try:
            for precision, blob in blobs.items():
                blob.replace(self.path(version.version, precision.value))
            write_all_atomically({**self._descriptions(version), **others})
        except OSError:
            self.remove(version.version)
            raise

    def remove(self, number: int) -> None:
        """Remove a version's files. Files being read stay readable.

        Its description is renamed first, which ends the version at once: what a crash leaves of it is not mistaken for
        a version that lost its description.
        """
        with contextlib.suppress(OSError):
            self.path(number, "json").replace(self.path(number, _REMOVED))
        for kind in (*_DESCRIPTIONS, *(precision.value for precision in Precision), _REMOVED):
            remove(self.path(number, kind))

    def open(self, number: int, precision: Precision) -> BinaryIO:
        """Open an encoding.

        Raises:
            NotFound: It was removed.
        """
        try:
            return self.path(number, precision.value).open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"version {number} is no longer kept", reason=Reason.UNKNOWN_VERSION) from error

    def scan(self, acknowledged: int | None) -> Scan:
        """Read and verify everything; remove what was never acknowledged.

        Args:
            acknowledged: Greatest number of a version that may have been acknowledged; None if that is not known.

        Raises:
            FatalError: The system cannot read a version just now, which proves nothing about its bytes.
        """
        versions: dict[int, Version] = {}
        corrupt: dict[int, str] = {}
        repaired = set()
        numbers = _numbers(self._folder)
        for number in numbers:
            if is_there(self.path(number, _REMOVED)):
                self.remove(number)
                continue
            try:
                versions[number], was_whole = self._verified(number)
                if not was_whole:
                    repaired.add(number)
            except (DataLoss, FileNotFoundError) as error:
                if acknowledged is not None and number > acknowledged:
                    _log.info("removed a version that was never acknowledged", version=number)
                    self.remove(number)
                else:
                    corrupt[number] = str(error)
            except OSError as error:
                what = f"cannot read version {number} in {self._folder}: {error.strerror}"
                advice = f"if it stays unreadable, move its files ({number:010d}.*) away; its tags are then dropped"
                raise FatalError(f"{what}; {advice}") from error
        high_water = max([0, *numbers, *_numbers(self._folder / _SET_ASIDE)])
        return Scan(versions, corrupt, frozenset(repaired), high_water)

    def set_aside(self, number: int, reason: str) -> None:
        """Move what is left of a corrupt version out of the way, for inspection."""
        _log.error("version corrupt, will not be served", version=number, reason=reason)
        folder = self._folder / _SET_ASIDE
        try:
            folder.mkdir(exist_ok=True)
            for path in self._folder.glob(f"{number:010d}.*"):
                path.replace(folder / path.name)
        except OSError as error:
            _log.warning("cannot set a corrupt version aside", version=number, reason=str(error))

    def _verified(self, number: int) -> tuple[Version, bool]:
        """Return an intact version, and whether its description was intact; both copies of it are restored if possible.

        Raises:
            FileNotFoundError: It has no description.
            DataLoss: Its description or an encoding is corrupt or missing.
        """
        version, is_whole, has_both = self._described(number)
        for encoding in version.encodings:
            try:
                with self.open(number, encoding.precision) as file:
                    verify(file, encoding)
            except NotFound as error:
                raise DataLoss(f"its {encoding.precision.value} encoding is missing") from error
        if not has_both:
            try:
                write_all_atomically(self._descriptions(version))
            except OSError as error:  # of a full disk, say: the version is whole, and the next start tries again
                _log.warning("cannot restore a copy of a description", version=number, reason=str(error))
        return version, is_whole

    def _described(self, number: int) -> tuple[Version, bool, bool]:
        """Return a version's description, whether none of it was lost, and whether both copies are there.

        A copy that is not there is no loss: folders of earlier versions have none.
        """
        found: dict[str, Version] = {}
        corruption: DataLoss | None = None
        for kind in _DESCRIPTIONS:
            try:
                path = self.path(number, kind)
                version = to_version(unseal(path.read_bytes(), path))
                if version.version != number:
                    raise DataLoss(f"the description names version {version.version}")
                found[kind] = version
            except FileNotFoundError:
                continue
            except DataLoss as error:
                corruption = error
        if not found:
            raise corruption or FileNotFoundError("its description is missing")
        return next(iter(found.values())), corruption is None and "json" in found, len(found) == len(_DESCRIPTIONS)

    def _descriptions(self, version: Version) -> dict[Path, bytes]:
        return dict.fromkeys((self.path(version.version, kind) for kind in _DESCRIPTIONS), seal(from_version(version)))


def verify(file: BinaryIO, encoding: Encoding) -> None:
    """Read a file to its end, compare it to its size and SHA-256, and rewind it.

    Raises:
        DataLoss: It is truncated or has flipped bits.
    """
    digest, size_bytes = hashlib.sha256(), 0
    while piece := file.read(_READ_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
    name = encoding.precision.value
    if size_bytes != encoding.size_bytes:
        raise DataLoss(f"its {name} encoding has {size_bytes} of {encoding.size_bytes} bytes")
    if digest.digest() != encoding.sha256:
        raise DataLoss(f"its {name} encoding does not match its SHA-256")
    file.seek(0)


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted({int(match[1]) for match in matches if match})


class StoredBlob:
    """An open encoding.

    Reading continues, from the disk, when a newer version takes its place in memory or retention removes it.
    """

    def __init__(self, number: int, encoding: Encoding, file: BinaryIO, intact: IntactBlobs) -> None:
        """Open a reader.

        Args:
            number: Number of the version it is of.
            encoding: What it is.
            file: Its file; closed with this.
            intact: Holds its bytes in memory for all readers as long as no newer version takes its place.
        """
        self.number, self.encoding = number, encoding
        self._file, self._intact, self._offset = file, intact, 0

    @property
    def in_memory(self) -> bool:
        """Whether it was verified and is read without waiting for the disk, for now."""
        return self._held() is not None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def verify(self) -> None:
        """Check the bytes before the first is read; those of the newest version stay in memory.

        Raises:
            DataLoss: They are truncated or have flipped bits.
            Unavailable: It was closed meanwhile.
        """
        with self._removal_reported():
            self._intact.check(self.number, self.encoding, self._file)

    def read_memory(self, size_bytes: int) -> bytes | None:
        """Return the next bytes, at most `size_bytes` and none at the end; None if they must come from the disk."""
        held = self._held()
        return None if held is None else self._moved(held[self._offset : self._offset + size_bytes])

    def read_disk(self, size_bytes: int) -> bytes:
        """Return the next bytes as `read_memory`, but from the disk.

        Raises:
            Unavailable: It was closed meanwhile.
        """
        with self._removal_reported():
            self._file.seek(self._offset)
            return self._moved(self._file.read(size_bytes))

    def close(self) -> None:
        """Close the file; from any thread, also while it is read. May be called twice."""
        self._file.close()

    @contextlib.contextmanager
    def _removal_reported(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:  # of a closed file
            raise Unavailable(
                f"version {self.number} was removed while it was being read; fetch a newer one",
                reason=Reason.VERSION_REMOVED,
            ) from error

    def _held(self) -> bytes | None:
        return self._intact.get(self.number, self.encoding.precision)

    def _moved(self, data: bytes) -> bytes:
        self._offset += len(data)
        return data


@contextlib.contextmanager
def full_disk_reported() -> Iterator[None]:
    """Turn the operating system's error for a full disk into `ResourceExhausted`."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted(
                f"the parameter server's disk is full ({error.strerror}); nothing was stored", reason=Reason.DISK_FULL
            ) from error
        raise
