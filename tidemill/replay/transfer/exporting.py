"""Export of a table from a running server into a folder of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument, TidemillError
from tidemill.replay.argument_types import check_deadline
from tidemill.replay.client import ReplayClient
from tidemill.replay.transfer.folder import FolderWriter
from tidemill.replay.transfer.stream import Items, Start, Steps, open_export


@dataclass(frozen=True)
class TransferReport:
    """Report of an export, an import or a copy.

    Attributes:
        table: Name of the table.
        items: Items.
        steps: Rows of the chunks that have their steps. A chunk that was flushed before it was full ends in padding,
            so there may be more rows than steps.
        lost_items: Items left out because bytes they need are corrupt.
        size_bytes: Bytes of the files.
        table_items: Items of the table after an import or a copy, those before it included; None if the server, which
            has stored everything, did not answer that.
        evicted_items: Items that a full table dropped during an import: its own, or the first of the imported ones.
    """

    table: str
    items: int
    steps: int
    lost_items: int
    size_bytes: int
    table_items: int | None = 0
    evicted_items: int = 0


def export_table(  # noqa: PLR0913 - each is a separate condition
    address: str,
    table: str,
    folder: str | Path,
    *,
    newest: int | None = None,
    min_age: int = 0,
    max_age: int | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    timeout_s: float = 60.0,
) -> TransferReport:
    """Write a table of a running server into a new folder, as it is at one moment, while writers and learners continue.

    The files are safetensors (docs/replay.md says what is in them). Memory holds one file of 64 MiB at a time, twice
    while it is written, however large the table is. Of a table over several servers, each server's part is exported by
    itself.

    Args:
        address: Of the server.
        table: Name of the table.
        folder: Where to write; must not exist. It is there only once it is whole.
        newest: Only so many of the newest items; None means all.
        min_age: Only items with at least so many inserted after them.
        max_age: Only items with at most so many inserted after them; None means any.
        since_s: Only items that came at this Unix time, in seconds, or later; None means any. The server knows to the
            second when an item came, and of what lies longer back to 0.5 % of that (ADR 0046).
        until_s: Only items that came before this one; None means any.
        timeout_s: Longest wait for the server's next part, in seconds.

    Raises:
        InvalidArgument: The folder exists, or an argument is out of range.
        FailedPrecondition: A time is given, and the server does not know when any item of the table came.
        NotFound: No such table.
        ResourceExhausted: The disk is full, or the server needed the memory that the export held.
        Unavailable: The server cannot be reached, stopped, or was silent for `timeout_s`.
    """
    check_deadline("timeout_s", timeout_s)
    folder = Path(folder)
    if folder.exists():
        raise InvalidArgument(f"the folder to write is {folder}, which exists: name one that does not")
    with ReplayClient(address, deadline_s=timeout_s) as client:
        client.check_times(table, since_s, until_s)
        rate_limiter_off = client.describe_table(table).rate_limiter_off
    wanted = {"newest": newest, "min_age": min_age, "max_age": max_age, "since_s": since_s, "until_s": until_s}
    with open_export(address, table, timeout_s=timeout_s, **wanted) as parts:  # type: ignore[arg-type]
        start = next(parts)
        if not isinstance(start, Start):
            raise TidemillError(f"the server at {address} began an export with {type(start).__name__}")
        with FolderWriter(folder, start.config, rate_limiter_off=rate_limiter_off) as writer:
            checked = _Checked()
            for part in parts:
                if isinstance(part, Steps):
                    checked.add(part)
                    writer.add_steps(part)
                elif isinstance(part, Items):
                    writer.add_items(checked.whole(part))
            writer.lost_items = start.items - writer.items
            writer.finish()
            return TransferReport(table, writer.items, writer.steps, writer.lost_items, writer.size_bytes)


class _Checked:
    """Rows whose chunks can be decoded."""

    def __init__(self) -> None:
        self._ends: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._corrupt: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        self._rows = 0

    def add(self, part: Steps) -> None:
        """Take note of further chunks."""
        self._ends.append(self._rows + np.cumsum(part.step_counts))
        self._corrupt.append(part.is_corrupt)
        self._rows += int(part.step_counts.sum())

    def whole(self, items: Items) -> Items:
        """Return the items without those that need a chunk which does not decode."""
        self._ends, self._corrupt = [np.concatenate(self._ends)], [np.concatenate(self._corrupt)]
        before = np.concatenate(([0], np.cumsum(self._corrupt[0])))
        first = np.searchsorted(self._ends[0], items.first_rows, side="right")
        last = np.searchsorted(self._ends[0], items.first_rows + items.lengths - 1, side="right")
        return items.take(np.flatnonzero(before[last + 1] == before[first]))
