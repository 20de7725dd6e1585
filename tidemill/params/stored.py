"""Access to a parameter server's folder without a server, to inspect a run that has ended.

The files are those services/paramserver writes: NUMBER.json and its copy describe a version, NUMBER.full.safetensors
and NUMBER.half.safetensors are its encodings, tags.json and its copy hold the tags. Nothing is ever written here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidemill.errors import DataLoss, FatalError, NotFound
from tidemill.params.document import to_version, unseal
from tidemill.params.version import LATEST, Params, Precision, Version

_TAGS = ("tags.json", "tags.copy.json")
_DESCRIPTIONS = ("json", "copy.json")


def read_params(folder: Path, selector: int | str = LATEST) -> Params:
    """Return a stored version, full precision.

    Args:
        folder: The server's folder, RUN/params.
        selector: Number of a version, or a tag.

    Raises:
        NotFound: There is no such version or tag; the message names those there are.
        DataLoss: The files of the version are corrupt.
    """
    number = selector if isinstance(selector, int) else _number_of(folder, selector)
    version = _read_version(folder, number)
    encoding = version.encoding(Precision.FULL)
    file = folder / f"{number:010d}.{encoding.precision.value}.safetensors"
    try:
        blob = file.read_bytes()
    except FileNotFoundError as error:
        raise DataLoss(f"version {number} has lost {file}") from error
    if len(blob) != encoding.size_bytes or hashlib.sha256(blob).digest() != encoding.sha256:
        raise DataLoss(f"{file} does not match its size and SHA-256")
    return Params(version, encoding.precision, blob)


def newest_number(folder: Path) -> int:
    """Return the number of the newest version in a server's folder; 0 without one."""
    return max(_stored_numbers(folder), default=0)


class OwnFolder:
    """Tells whether a folder is that of the server whose versions are followed, not that of another run."""

    def __init__(self, folder: Path, newest: Callable[[], Params | None]) -> None:
        """Ask nothing yet.

        Args:
            folder: RUN/params, which may be that of another run of the same name, or of the run before.
            newest: Gives the newest parameters of a server; None where they are not known.
        """
        self._folder, self._newest = folder, newest
        self._found = 0  # newest version that the folder has had

    def __call__(self) -> bool:
        """True unless the folder has other versions. One that was removed is its own if an older one was found."""
        params = self._newest()
        if params is None:
            return True
        try:
            is_own = _read_version(self._folder, params.number) == params.version
        except NotFound:
            stored = _stored_numbers(self._folder)
            if not stored:
                return True
            is_own = 0 < self._found <= params.number < stored[-1]
        except (OSError, DataLoss, FatalError):
            return True
        self._found = params.number if is_own else 0
        return is_own


def _number_of(folder: Path, tag: str) -> int:
    stored = _stored_numbers(folder)
    tags = _read_tags(folder) | ({LATEST: stored[-1]} if stored else {})
    if tag not in tags:
        known = ", ".join(sorted(tags)) or "none"
        raise NotFound(f"{folder} has no tag {tag!r}; tags there: {known}; versions: {_listed(stored)}")
    return tags[tag]


def _stored_numbers(folder: Path) -> list[int]:
    names = (path.name.partition(".")[0] for path in folder.glob("*.json"))
    return sorted({int(name) for name in names if name.isdigit()})


def _read_tags(folder: Path) -> dict[str, int]:
    newest = _newest(folder, _TAGS)
    return {str(tag): int(number) for tag, number in newest.get("tags", {}).items()}


def _newest(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the copy with the greatest sequence number that is intact; empty without one."""
    copies = []
    for name in names:
        with contextlib.suppress(FileNotFoundError, DataLoss):
            copies.append(_unseal(folder / name))
    return max(copies, key=lambda copy: int(copy["sequence"]), default={})


def _read_version(folder: Path, number: int) -> Version:
    error: Exception | None = None
    for kind in _DESCRIPTIONS:
        try:
            return to_version(_unseal(folder / f"{number:010d}.{kind}"))
        except DataLoss as cause:
            error = cause
        except FileNotFoundError:
            continue
    known = _listed(_stored_numbers(folder))
    raise error or NotFound(f"{folder} has no version {number}; versions there: {known}")


def _unseal(file: Path) -> dict[str, Any]:
    try:
        return unseal(file.read_bytes(), file)
    except DataLoss as error:
        raise DataLoss(f"{file} is corrupt: {error}") from error


def _listed(numbers: list[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "none"
