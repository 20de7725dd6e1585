"""Finds the mark of a log, which each of its files names more than once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tidemill.services.replay.log_frame import MARK_BYTES, PREAMBLE_BYTES
from tidemill.services.replay.newest_segment import read_newest

_HEAD_BYTES = 4096


def new_mark() -> bytes:
    """Return the mark of a new log: random, so that no actor can put it into what it appends."""
    return os.urandom(MARK_BYTES)


def find_mark(folder: Path, files: Iterable[Path]) -> bytes | None:
    """Return the mark that the heads of a log's files name most often; None if there are none.

    Only what stands where a mark belongs is a candidate: the preamble's end and the first frame's start.
    """
    heads = [_head(path) for path in files]
    places = (PREAMBLE_BYTES - MARK_BYTES, PREAMBLE_BYTES)
    candidates = {head[at : at + MARK_BYTES] for head in heads for at in places}
    newest, _ = read_newest(folder)
    if newest is not None:
        candidates.add(newest.mark)
        heads.append(newest.mark)
    likely = sorted(mark for mark in candidates if len(mark) == MARK_BYTES and any(mark))
    return max(likely, key=lambda mark: sum(head.count(mark) for head in heads), default=None)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)
