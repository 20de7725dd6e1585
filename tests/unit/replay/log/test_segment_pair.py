"""The two files of a segment, on a disk that refuses the second."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.services.replay.log.segments import LogFolder, NewestSegment, SegmentPair


def test_file_is_closed_whose_copies_cannot_be_opened(tmp_path: Path) -> None:
    """It is tried again twice a second while the disk is full: each time would take a descriptor for good."""
    opened: list[Any] = []

    def open_file(path: Path) -> Any:  # noqa: ANN401 - a stand-in
        if path.suffix == ".copies":
            raise OSError(errno.ENOSPC, "No space left on device")
        opened.append(Mock())
        return opened[-1]

    folder = LogFolder(tmp_path)
    with pytest.raises(OSError, match="No space"):
        SegmentPair(folder, NewestSegment(bytes(8), 1, 0), open_file)
    assert [file.close.call_count for file in opened] == [1]
