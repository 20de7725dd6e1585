"""The numbers that must never go backwards, and the tags, each on disk twice.

Both copies hold the same sealed document, so that a corrupt copy loses nothing. Tags have a separate document: a
publish changes the numbers, and writes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from tidemill.errors import DataLoss
from tidemill.params.document import seal, unseal

_log = structlog.get_logger()


@dataclass(frozen=True)
class State:
    """The numbers that must survive a restart besides the versions.

    Attributes:
        fencing_token: Newest fencing token handed out.
        high_water: Greatest version number ever taken.
    """

    fencing_token: int
    high_water: int


class StateFile:
    """Both documents in one folder."""

    def __init__(self, folder: Path) -> None:
        self._numbers, self._tags = _TwoCopies(folder, "state"), _TwoCopies(folder, "tags")

    def read(self) -> tuple[State | None, Mapping[str, int], int]:
        """Return the newest intact numbers, None when they are lost; the tags; and how many copies are corrupt."""
        (numbers, corrupt), (tags, corrupt_tags) = self._numbers.read(), self._tags.read()
        corrupt += corrupt_tags
        pointed = dict((tags or {}).get("tags", {}))
        if numbers is None:
            return None, pointed, corrupt
        try:
            return State(int(numbers["fencing_token"]), int(numbers["high_water"])), pointed, corrupt
        except (KeyError, TypeError, ValueError) as error:
            _log.error("state file has unexpected fields", reason=str(error))
            return None, pointed, corrupt + 1

    def numbers(self, fencing_token: int, high_water: int) -> dict[Path, bytes]:
        """Return both copies of the next numbers, for `write_all_atomically`."""
        return self._numbers.next({"fencing_token": fencing_token, "high_water": high_water})

    def tags(self, tags: Mapping[str, int]) -> dict[Path, bytes]:
        """Return both copies of the next tags, for `write_all_atomically`."""
        return self._tags.next({"tags": dict(tags)})


class _TwoCopies:
    """One document, kept twice; the copy with the greater sequence number is newer."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = (folder / f"{name}.json", folder / f"{name}.copy.json")
        self._sequence = 0

    def read(self) -> tuple[dict[str, Any] | None, int]:
        """Return the newest intact copy, None when there is none, and how many are corrupt."""
        found: dict[str, Any] | None = None
        corrupt = 0
        for path in self._paths:
            try:
                document = unseal(path.read_bytes(), path)
                sequence = int(document.get("sequence", 0))
            except FileNotFoundError:
                continue
            except (DataLoss, TypeError, ValueError) as error:
                corrupt += 1
                _log.error("state file corrupt", path=str(path), reason=str(error))
                continue
            if found is None or sequence > self._sequence:
                found, self._sequence = document, sequence
        return found, corrupt

    def next(self, document: Mapping[str, Any]) -> dict[Path, bytes]:
        """Return both copies' contents."""
        self._sequence += 1
        data = seal({"sequence": self._sequence, **document})
        return dict.fromkeys(self._paths, data)
