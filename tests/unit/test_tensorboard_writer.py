"""Event files of a disk that is full for a while."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from tests.support.event_files import scalars
from tidemill.tensorboard_writer import TensorboardWriter


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread
def test_points_are_written_again_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's own writer raises its first error ever after: another takes its place."""
    with closing(TensorboardWriter(tmp_path)) as writer:
        writer.write({"loss": 1.0}, 1)
        with monkeypatch.context() as full:

            def refuse(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            full.setattr(RecordWriter, "write", refuse)
            for _ in range(2):
                with pytest.raises(OSError, match="No space"):
                    writer.write({"loss": 2.0}, 2)
        writer.write({"loss": 3.0}, 3)
    assert scalars(tmp_path, "loss") == [(1, 1.0), (3, 3.0)]
