"""The export to a Minari dataset, without the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from tests.support.naming import naming
from tests.support.replay_service import local_server
from tidemill.errors import AlreadyExists, InvalidArgument
from tidemill.replay import ReplayClient, SelectorConfig, SelectorKind, TableConfig, signature_like
from tidemill.replay.transfer import minari

_STEP: dict[str, Any] = {"observation": [0.0], "action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def test_dataset_that_another_made_during_the_export_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name was free at the start; what has taken it meanwhile is not removed."""
    dataset = tmp_path / "walks" / "random-v0"
    package = Mock()
    package.storage.get_dataset_path.return_value = dataset
    package.create_dataset_from_buffers.side_effect = ValueError("already exists")  # as Minari itself says it
    monkeypatch.setattr(minari, "_minari", lambda: package)
    monkeypatch.setattr(minari, "export_table", lambda *_, **__: dataset.mkdir(parents=True))
    monkeypatch.setattr(minari, "ReplayClient", MagicMock())
    for name in ("ExportedTable", "Episodes", "_columns", "check_columns"):
        monkeypatch.setattr(minari, name, Mock(return_value=Mock(items=[1], spaces=(None, None))))
    with pytest.raises(AlreadyExists, match=naming("walks/random-v0")):
        minari.export_minari("here:1", "steps", "walks/random-v0")
    assert dataset.is_dir()


@pytest.mark.parametrize(
    "step, env, says",
    [
        (_STEP, "CartPol-v1", "env 'CartPol-v1'"),
        (_STEP, "no_such_module:Env-v0", "env 'no_such_module:Env-v0'"),
        (_STEP | {"observation": [0.0] * 3, "action": [0.0]}, "Pendulum-v1", "Box(-2.0, 2.0, (1,), float32) run env"),
        ({"reward": 0.0}, None, "'t' ['observation', 'action', 'terminated', 'truncated']"),
    ],
)
def test_mistake_is_told_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: dict[str, Any], env: str | None, says: str
) -> None:
    """Which may take hours: an environment that is misspelt or not installed, and a column that is missing."""
    package, export = Mock(), Mock()
    package.storage.get_dataset_path.return_value = tmp_path / "x-v0"
    monkeypatch.setattr(minari, "_minari", lambda: package)
    monkeypatch.setattr(minari, "export_table", export)
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(TableConfig("t", signature_like(step), SelectorConfig(SelectorKind.UNIFORM), 10, 1))
        with pytest.raises(InvalidArgument, match=naming(says)):
            minari.export_minari(server.address, "t", "x-v0", env=env)
    export.assert_not_called()
