"""A new run on a replay service that other runs have used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.naming import naming
from tests.support.replay_service import local_server
from tidemill.config.load import load_config, write_document
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings
from tidemill.errors import AlreadyExists
from tidemill.file_lock import open_locked
from tidemill.services.launcher import cli
from tidemill.services.launcher.run import shared_table
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.run.paths import runs_with_its_table
from tidemill.services.launcher.run.shared_table import check_new_table, create_alone


def test_new_run_takes_over_no_table_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Items of nobody known are told; a run without actors trains on those of others on purpose."""
    with local_server() as server:
        document = {
            "run": {"root": str(tmp_path), "name": "second"},
            "table": {"name": "demos"},
            "launcher": {"replay": False},
            "cluster": {"replay": [server.address]},
        }
        config = load_config(document)
        assert check_new_table(config) == ""
        write_demonstrations(server.address, demonstrations())
        notice = check_new_table(config)
        assert (
            f"table.name is 'demos', and the replay service at {server.address} holds 19 items in a table of this name"
            in notice
        )
        first = replace(config, run=replace(config.run, name="first"))
        first.run.folder.mkdir()
        write_document(first, first.run.folder / "config.yaml")
        assert check_new_table(config) == notice  # it never trained
        (first.run.folder / "result.json").write_text("{}")
        with pytest.raises(AlreadyExists, match=naming(f"table.name 'demos' {first.run.folder} --table.name")):
            check_new_table(config)
        options = ["--run.root", str(tmp_path), "--run.name", "second", "--table.name", "demos"]
        shared = ["--launcher.replay", "false", "--cluster.replay", server.address]
        with pytest.raises(AlreadyExists, match=naming("table.name 'demos'")):
            cli.COMMANDS["train"].load()([*options, *shared])
        assert check_new_table(replace(config, table=replace(config.table, name="other"))) == ""
        assert check_new_table(replace(config, launcher=LauncherSettings(replay=False, actors=0))) == ""
    assert "19 items" not in capsys.readouterr().err


def test_of_two_runs_on_one_table_the_first_fills_it(tmp_path: Path) -> None:
    """The second is refused before its folder is made, though the table is empty. A run without actors fills none."""
    first, second = (_on_shared_table(tmp_path, name) for name in ("z", "a"))
    others = (
        replace(second, table=replace(second.table, name="other")),
        replace(second, cluster=replace(second.cluster, replay=("other:7401",))),
        replace(second, launcher=LauncherSettings(replay=False, actors=0)),
        replace(second, launcher=LauncherSettings()),
    )
    with create_alone(first, fresh=False):
        with pytest.raises(AlreadyExists, match=naming(f"table.name 'replay' {first.run.folder} --table.name")):
            create_alone(second, fresh=False)
        assert not second.run.folder.exists()
        for other in others:
            create_alone(other, fresh=False).close()
    create_alone(second, fresh=False).close()  # the first has ended


def test_refused_run_moves_no_earlier_one_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --fresh the earlier run of its name stays, and can be resumed."""
    monkeypatch.setattr("tidemill.services.launcher.run.shared_table._ASK_S", 0.1)
    monkeypatch.setattr("tidemill.services.launcher.commands.train.check_settings", lambda *_: None)
    monkeypatch.setattr("tidemill.services.launcher.commands.train.run", Mock(side_effect=AssertionError))
    first, second = (_on_shared_table(tmp_path, name) for name in ("a", "z"))
    RunFolder.create(second, fresh=False).close()
    (second.run.folder / "result.json").write_text("{}")
    options = ["--run.root", str(tmp_path), "--run.name", "z", "--launcher.fork-services", "false", "--fresh"]
    shared = ["--launcher.replay", "false", "--cluster.replay", *first.cluster.replay]
    with (
        RunFolder.create(first, fresh=False),
        pytest.raises(AlreadyExists, match=naming(f"{first.run.folder} running")),
    ):
        cli.COMMANDS["train"].load()([*options, *shared])
    assert (second.run.folder / "result.json").exists()
    assert not (tmp_path / "z-1").exists()


def test_start_waits_for_another_that_has_not_written_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start holds a lock from its look for other runs until it can be found. It does without another user's lock."""
    config, lock = _on_shared_table(tmp_path, "run"), tmp_path / ".starting"
    look, write, held = runs_with_its_table, RunFolder.write_config, []

    def watched_look(settings: RunConfig, which: Callable[[Path], bool]) -> Iterator[tuple[Path, RunConfig]]:
        held.append(open_locked(lock) is None)
        return look(settings, which)

    def watched_write(folder: RunFolder, settings: RunConfig) -> None:
        held.append(open_locked(lock) is None)
        write(folder, settings)

    with monkeypatch.context() as patch:
        patch.setattr(shared_table, "runs_with_its_table", watched_look)
        patch.setattr(RunFolder, "write_config", watched_write)
        create_alone(config, fresh=False).close()
    assert held == [True, True]
    monkeypatch.setattr(shared_table, "locked", Mock(side_effect=PermissionError))
    create_alone(config, fresh=False).close()


def test_local_address_is_a_replay_service_of_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of two machines with a common run.root use their own; at the address of a network they share one."""
    first, second = (_on_shared_table(tmp_path, name) for name in ("first", "second"))
    first, over_network = (
        replace(run, cluster=replace(run.cluster, replay=(*run.cluster.replay, "replay.example:7401")))
        for run in (first, second)
    )
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        stack.enter_context(create_alone(first, fresh=False))
        with pytest.raises(AlreadyExists, match=naming(f"{first.run.folder} running")):
            create_alone(second, fresh=False)
        patch.undo()
        create_alone(second, fresh=False).close()
        with pytest.raises(AlreadyExists, match=naming(f"{first.run.folder} running")):
            create_alone(over_network, fresh=False)


def _on_shared_table(root: Path, name: str) -> RunConfig:
    """Return the settings of a run with actors on a replay service that is not there."""
    run = {"root": str(root), "name": name}
    return load_config({"run": run, "launcher": {"replay": False}, "cluster": {"replay": [f"unix://{root}/none.sock"]}})


def test_service_that_is_not_there_yet_is_left_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check does not decide."""
    monkeypatch.setattr("tidemill.services.launcher.run.shared_table._ASK_S", 0.1)
    document = {"launcher": {"replay": False}, "cluster": {"replay": [f"unix://{tmp_path}/none.sock"]}}
    assert check_new_table(load_config(document)) == ""
