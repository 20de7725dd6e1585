"""The numbers that must never go backwards, and the tags, on disk twice.

Both copies hold the same sealed document, so that a damaged copy loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from tidemill.errors import DataLoss
from tidemill.params.document import seal, unseal

_COPIES = ("state.json", "state.copy.json")

_log = structlog.get_logger()


@dataclass(frozen=True)
class State:
    """What a restart must remember besides the versions themselves.

    Attributes:
        sequence: Number of this state; the copy with the greater one is newer.
        generation: Newest generation handed out.
        high_water: Greatest version number ever taken.
        tags: Where tags point, without `latest`.
    """

    sequence: int
    generation: int
    high_water: int
    tags: Mapping[str, int]


class StateFile:
    """The two copies in one folder."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / name for name in _COPIES]

    def read(self) -> tuple[State | None, int]:
        """Return the newest intact copy, None when there is none, and how many copies are damaged."""
        states, damaged = [], 0
        for path in self._paths:
            try:
                states.append(_parse(path.read_bytes()))
            except FileNotFoundError:
                continue
            except DataLoss as error:
                damaged += 1
                _log.error("state file is damaged", path=str(path), reason=str(error))
        return max(states, key=lambda state: state.sequence, default=None), damaged

    def contents(self, state: State) -> dict[Path, bytes]:
        """Return both copies' contents, for `write_whole`."""
        document = {
            "sequence": state.sequence,
            "generation": state.generation,
            "high_water": state.high_water,
            "tags": dict(state.tags),
        }
        return {path: seal(document) for path in self._paths}


def _parse(data: bytes) -> State:
    content = unseal(data)
    try:
        return State(**content)
    except TypeError as error:
        raise DataLoss(f"it has other fields than expected: {error}") from error
