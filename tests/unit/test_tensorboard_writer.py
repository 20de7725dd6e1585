"""Event files of a disk that is full for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.event_files import scalars
from tests.support.full_disk import no_file_longer_than
from tidemill.tensorboard_writer import TensorboardWriter


def test_points_are_written_again_once_there_is_room(tmp_path: Path) -> None:
    """In the same file, of which TensorBoard can read every event, however many attempts there were."""
    writer = TensorboardWriter(tmp_path)
    for _ in range(2):
        with no_file_longer_than(8), pytest.raises(OSError, match="File too large"):
            writer.write({"loss": 0.0}, 0)
    writer.write({"loss": 1.0}, 1)
    [file] = tmp_path.iterdir()
    for _ in range(2):
        with no_file_longer_than(file.stat().st_size + 8), pytest.raises(OSError, match="File too large"):
            writer.write({"loss": 2.0}, 2)
    writer.write({"loss": 3.0}, 3)
    assert scalars(tmp_path, "loss") == [(1, 1.0), (3, 3.0)]
    assert list(tmp_path.iterdir()) == [file]
