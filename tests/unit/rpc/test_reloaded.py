"""Contents of files that change while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

from tidemill.rpc.reloaded import Reloaded

OLD, NEW = "old", "new one"  # of two sizes: a coarse clock would give both the same times


def _reloaded(file: Path, meanwhile: list[Callable[[], object]]) -> Reloaded[str]:
    """Return the contents of a file; between reading them and their use, what `meanwhile` holds is done once."""

    def read() -> str:
        text = file.read_text()
        if meanwhile:
            meanwhile.pop()()
        return text

    return Reloaded([str(file)], read, Mock(), "")


def test_contents_that_are_replaced_while_they_are_first_read_are_noticed(tmp_path: Path) -> None:
    """The file is looked at before it is read."""
    file = tmp_path / "token"
    file.write_text(OLD)
    contents = _reloaded(file, [lambda: file.write_text(NEW)])
    assert contents.value == OLD
    assert contents.refresh()
    assert contents.value == NEW


def test_older_contents_that_another_thread_sets_late_do_not_stay(tmp_path: Path) -> None:
    """It read the file before the replacement, which this thread has seen: what it sets is as old as it looks."""
    file = tmp_path / "token"
    file.write_text(OLD)
    meanwhile: list[Callable[[], object]] = []
    contents = _reloaded(file, meanwhile)

    def replace() -> None:
        file.write_text(NEW)
        assert contents.refresh()

    meanwhile.append(replace)
    assert contents.refresh(anyway=True)
    contents.refresh()
    assert contents.value == NEW
