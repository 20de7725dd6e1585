"""The export to a Minari dataset and the import of one, without the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.naming import naming
from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S
from tidemill.errors import AlreadyExists, InvalidArgument, NotFound
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


@pytest.mark.parametrize(
    "name, error", [("cartpole/played", TypeError("int() argument")), ("walks.random-v0", ValueError("Malformed"))]
)
def test_name_that_minari_refuses_is_told_before_the_export(
    name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a version, and one with other characters; the export was lost after it."""
    package, export = Mock(), Mock()
    package.dataset.minari_dataset.parse_dataset_id.side_effect = error
    monkeypatch.setattr(minari, "_minari", lambda: package)
    monkeypatch.setattr(minari, "export_table", export)
    with pytest.raises(InvalidArgument, match=naming(f"'{name}' NAME-vN")):
        minari.export_minari("here:1", "steps", name)
    export.assert_not_called()


def test_namespace_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the datasets there."""
    for name in ("human-v1", "expert/small-v0"):
        (tmp_path / "door" / name / "data").mkdir(parents=True)
    package = Mock()
    package.storage.get_dataset_path.side_effect = tmp_path.joinpath
    monkeypatch.setattr(minari, "_minari", lambda: package)
    with pytest.raises(NotFound, match=naming("'door' door/human-v1 door/expert/small-v0")):
        minari.import_minari("here:1", "door", "steps")
    with pytest.raises(NotFound, match=naming("'door/human-v2' `minari download door/human-v2`")):
        minari.import_minari("here:1", "door/human-v2", "steps")


@pytest.mark.parametrize("episodes", [0, 1, 2])
def test_dataset_that_minari_cannot_read_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: int
) -> None:
    """Of a version it does not know, or broken off in a later episode: no part of a table is left."""

    def read() -> Iterator[SimpleNamespace]:
        for number in range(episodes - 1):
            no = np.zeros(2, np.bool_)
            yield SimpleNamespace(
                id=number, observations=np.zeros((3, 1)), actions=no, rewards=no, terminations=no, truncations=no
            )
        raise OSError("truncated file")

    (tmp_path / "x-v0" / "data").mkdir(parents=True)
    package = Mock()
    package.storage.get_dataset_path.side_effect = tmp_path.joinpath
    package.load_dataset.side_effect = None if episodes else OSError("truncated file")
    package.load_dataset.return_value = Mock(
        total_steps=4,
        total_episodes=2,
        observation_space=spaces.Box(0, 1, (1,)),
        action_space=spaces.Discrete(2),
        iterate_episodes=read,
    )
    monkeypatch.setattr(minari, "_minari", lambda: package)
    with local_server() as server, ReplayClient(server.address) as client:
        with pytest.raises(InvalidArgument, match=naming(f"'x-v0' {tmp_path} truncated")):
            minari.import_minari(server.address, "x-v0", "t", timeout_s=WAIT_S)
        assert not client.list_tables()
