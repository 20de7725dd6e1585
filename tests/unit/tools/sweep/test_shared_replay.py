"""The replay service that runs of a sweep share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.replay_service import local_server
from tidemill.replay.client import ReplayClient
from tidemill.services.tools.sweep import shared_replay
from tidemill.services.tools.sweep.shared_replay import SharedReplay


@pytest.mark.parametrize("section", [None, {}, {"storage": {"memory_only": True}}])
def test_log_is_in_the_folder_of_the_sweep_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: object
) -> None:
    """Also where the base has an empty section."""
    start = Mock()
    monkeypatch.setattr(subprocess, "Popen", start)
    with SharedReplay(tmp_path, {"replay": section}, 2) as shared:
        pass
    words = start.call_args.args[0]
    assert (str(tmp_path / "replay") in words) == (not section)
    assert shared.keeps_items == (not section)


def test_table_counts_as_empty_once_the_service_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that the caller asks again. A run that never had a table has no items."""
    monkeypatch.setattr(subprocess, "Popen", Mock())
    with SharedReplay(tmp_path, {}, 2) as shared, local_server() as server:
        assert not shared.empty("trial_0000_seed_1")
        assert "replay.sock" in shared.problem
        monkeypatch.setattr(shared_replay, "ReplayClient", lambda _: ReplayClient(server.address))
        assert shared.empty("trial_0000_seed_1")
        assert not shared.problem


def test_service_that_cannot_be_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of its socket goes with the error."""
    sockets = tmp_path / "sockets"
    removed = Mock()
    monkeypatch.setattr(shared_replay, "make_socket_folder", lambda: sockets)
    monkeypatch.setattr(shared_replay, "remove_socket_folder", removed)
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=OSError("no memory")))
    with pytest.raises(OSError, match="no memory"), SharedReplay(tmp_path, {}, 2):
        pass
    removed.assert_called_once_with(sockets)
