"""The export to a Minari dataset, without the package."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.errors import AlreadyExists
from tidemill.replay.transfer import minari


def test_dataset_that_another_made_during_the_export_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name was free at the start; what has taken it meanwhile is not removed."""
    dataset = tmp_path / "walks" / "random-v0"
    package = Mock()
    package.storage.get_dataset_path.return_value = dataset
    package.create_dataset_from_buffers.side_effect = ValueError("already exists")  # as Minari itself says it
    monkeypatch.setattr(minari, "_minari", lambda: package)
    monkeypatch.setattr(minari, "export_table", lambda *_, **__: dataset.mkdir(parents=True))
    for name in ("ExportedTable", "Episodes", "_spaces"):
        monkeypatch.setattr(minari, name, Mock(return_value=Mock(items=[1]) if name != "_spaces" else (None, None)))
    with pytest.raises(AlreadyExists, match=naming("walks/random-v0")):
        minari.export_minari("here:1", "steps", "walks/random-v0")
    assert dataset.is_dir()
