"""A new run on a replay service that other runs have used."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.demonstrations import demonstrations, write_demonstrations
from tests.support.naming import naming
from tests.support.replay_service import local_server
from tidemill.config.load import load_config, write_document
from tidemill.config.services import LauncherSettings
from tidemill.errors import AlreadyExists
from tidemill.services.launcher import cli
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.run.shared_table import check_filled_alone, check_new_table


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


def test_of_two_runs_that_start_at_the_same_moment_one_fills_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first, though the table is still empty for both. A run without actors fills none."""
    address = f"unix://{tmp_path}/none.sock"
    document = {"launcher": {"replay": False}, "cluster": {"replay": [address]}}
    config = load_config(document | {"run": {"root": str(tmp_path)}})
    first, second = (replace(config, run=replace(config.run, name=name)) for name in ("z", "a"))
    with RunFolder.create(first, fresh=False), RunFolder.create(second, fresh=False):
        for run, time_ns in ((first, 1), (second, 2)):
            os.utime(run.run.folder / "config.yaml", ns=(time_ns, time_ns))
        check_filled_alone(first)
        with pytest.raises(AlreadyExists, match=naming(f"table.name 'replay' {first.run.folder} --table.name")):
            check_filled_alone(second)
        check_filled_alone(replace(second, table=replace(second.table, name="other")))
        check_filled_alone(replace(second, cluster=replace(second.cluster, replay=("other:7401",))))
        check_filled_alone(replace(second, launcher=LauncherSettings(replay=False, actors=0)))
        check_filled_alone(replace(second, launcher=LauncherSettings()))
    check_filled_alone(second)  # the first has ended
    monkeypatch.setattr("tidemill.services.launcher.run.shared_table._ASK_S", 0.1)
    monkeypatch.setattr("tidemill.services.launcher.commands.train.check_settings", lambda *_: None)
    monkeypatch.setattr("tidemill.services.launcher.commands.train.run", Mock(side_effect=AssertionError))
    options = ["--run.root", str(tmp_path), "--run.name", "a", "--launcher.fork-services", "false"]
    shared = ["--launcher.replay", "false", "--cluster.replay", address]
    with RunFolder.create(first, fresh=False):
        os.utime(first.run.folder / "config.yaml", ns=(1, 1))
        with pytest.raises(AlreadyExists, match=naming(f"{first.run.folder} running")):
            cli.COMMANDS["train"].load()([*options, *shared])


def test_service_that_is_not_there_yet_is_left_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check does not decide."""
    monkeypatch.setattr("tidemill.services.launcher.run.shared_table._ASK_S", 0.1)
    document = {"launcher": {"replay": False}, "cluster": {"replay": [f"unix://{tmp_path}/none.sock"]}}
    assert check_new_table(load_config(document)) == ""
