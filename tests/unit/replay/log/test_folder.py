"""Where a shard keeps its log."""

from __future__ import annotations

import dataclasses

import pytest

from tidemill.config.run import RunSettings
from tidemill.config.sections import ReplayConfig
from tidemill.config.services import ReplaySettings, StorageSettings
from tidemill.services.replay.__main__ import located


@pytest.mark.parametrize(
    "folder, expected",
    [
        ("", ""),
        ("/log", "/log"),
        ("{run}/replay", "/runs/pong/replay"),
        ("{run}/replay/{shard}", "/runs/pong/replay/1"),
        ("~/log/{shard}", "/home/me/log/1"),
    ],
)
def test_folder_of_the_log_may_name_the_run(folder: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`{run}` is the run's folder, so that one command line serves any run, and `~` the home; the rest stays."""
    monkeypatch.setenv("HOME", "/home/me")
    settings = ReplaySettings(shards=2, shard=1, storage=StorageSettings(folder=folder, segment_mib=3))
    found = located(ReplayConfig(run=RunSettings(name="pong", root="/runs"), replay=settings))
    assert found == dataclasses.replace(settings, storage=StorageSettings(folder=expected, segment_mib=3))
