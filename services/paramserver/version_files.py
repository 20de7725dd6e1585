"""The files of each version in the store's folder: written, checked, opened, removed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from services.paramserver.durable import remove, sync_folder, write_whole
from tidemill.errors import DataLoss, NotFound
from tidemill.params.document import from_version, seal, to_version, unseal
from tidemill.params.version import Encoding, Precision, Version

_NAME = re.compile(r"(\d{10,20})\.(json|full\.safetensors|half\.safetensors)")
_DAMAGED = "damaged"
_READ_BYTES = 1024 * 1024

_log = structlog.get_logger()


@dataclass(frozen=True)
class Scan:
    """What a restart finds.

    Attributes:
        versions: Intact versions by number, oldest first.
        damaged: Numbers of versions that were acknowledged and do not match their checksums.
        high_water: Greatest number in any file's name.
    """

    versions: Mapping[int, Version]
    damaged: tuple[int, ...]
    high_water: int


class VersionFiles:
    """All versions' files in one folder. Knows nothing of generations, tags or retention."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, number: int, kind: str) -> Path:
        """Return where a version's description (`json`) or encoding (`full`, `half`) is kept."""
        return self._folder / (f"{number:010d}.json" if kind == "json" else f"{number:010d}.{kind}.safetensors")

    def write(self, version: Version, blobs: Mapping[Precision, Path], others: Mapping[Path, bytes]) -> None:
        """Move a version's finished encodings into place and write its description.

        Args:
            version: The version; the name of its description is what makes it exist.
            blobs: Its encodings, on the same disk and flushed to it.
            others: Further files to be written with the description.

        Raises:
            OSError: The disk refused; the version does not exist.
        """
        description = self.path(version.version, "json")
        try:
            for precision, blob in blobs.items():
                blob.replace(self.path(version.version, precision.value))
            write_whole({description: seal(from_version(version)), **others})
            sync_folder(self._folder)
        except OSError:
            self.remove(version.version)
            raise

    def remove(self, number: int) -> None:
        """Remove a version's files, its description first. Files being read stay readable."""
        for kind in ("json", *(precision.value for precision in Precision)):
            remove(self.path(number, kind))

    def open(self, number: int, precision: Precision) -> BinaryIO:
        """Open an encoding.

        Raises:
            NotFound: It was removed.
        """
        try:
            return self.path(number, precision.value).open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"version {number} is no longer kept") from error

    def scan(self) -> Scan:
        """Read and verify everything; set damaged versions aside, remove what was never acknowledged."""
        versions, damaged = {}, []
        numbers = _numbers(self._folder)
        for number in numbers:
            try:
                versions[number] = self._verified(number)
            except FileNotFoundError:
                _log.info("removed a version that was never acknowledged", version=number)
                self.remove(number)
            except (DataLoss, OSError) as error:
                _log.error("version is damaged and will not be served", version=number, reason=str(error))
                damaged.append(number)
                self._set_aside(number)
        high_water = max([0, *numbers, *_numbers(self._folder / _DAMAGED)])
        return Scan(versions, tuple(damaged), high_water)

    def _verified(self, number: int) -> Version:
        """Return an intact version.

        Raises:
            FileNotFoundError: It has no description, so it was never acknowledged.
            DataLoss: Its description or an encoding is damaged or missing.
        """
        version = to_version(unseal(self.path(number, "json").read_bytes()))
        if version.version != number:
            raise DataLoss(f"the description names version {version.version}")
        for encoding in version.encodings:
            try:
                with self.open(number, encoding.precision) as file:
                    verify(file, encoding)
            except NotFound as error:
                raise DataLoss(f"its {encoding.precision.value} encoding is missing") from error
        return version

    def _set_aside(self, number: int) -> None:
        folder = self._folder / _DAMAGED
        try:
            folder.mkdir(exist_ok=True)
            for path in self._folder.glob(f"{number:010d}.*"):
                path.replace(folder / path.name)
        except OSError as error:
            _log.warning("cannot set a damaged version aside", version=number, reason=str(error))


def verify(file: BinaryIO, encoding: Encoding) -> None:
    """Read a file to its end, compare it to its size and SHA-256, and go back to its start.

    Raises:
        DataLoss: It is torn or flipped.
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
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted({int(match[1]) for match in matches if match})
