"""The file of a sweep: checked whole before any run is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from tests.support.naming import naming
from tidemill.config.given import given_in
from tidemill.config.load import load_config, read_document, write_document
from tidemill.errors import ConfigError
from tidemill.services.tools.sweep import runs
from tidemill.services.tools.sweep.command import journal_of, kept_base_of
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.plan import read_sweep

_END = {"run.max_env_steps": 1000}
_FILE: dict[str, Any] = {
    "base": "cartpole_dqn",
    "settings": _END,
    "space": {"agent.learning_rate": {"log": [1e-5, 1e-2]}},
}
_TABLES: dict[str, Any] = {
    "method": "grid",
    "settings": _END | {"launcher.replay": False, "cluster.replay": ["box:7401"]},
    "space": {"table.name": ["a", "b"]},
}
"""A sweep whose runs fill tables of a replay service that another program started, each its own."""


def _written(folder: Path, changes: dict[str, Any]) -> Path:
    file = folder / "space.yaml"
    document = {key: value for key, value in (_FILE | changes).items() if value is not None}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def test_trials_config_is_the_base_with_settings_and_values_over_it(tmp_path: Path) -> None:
    """Values of the space over `settings`, those over the base; all else as the base has it."""
    sweep = read_sweep(_written(tmp_path, {}))
    config = load_config(sweep.config({"agent.learning_rate": 0.5}))
    base = load_config(sweep.base)
    assert (config.agent.learning_rate, config.run.max_env_steps) == (0.5, 1000)  # type: ignore[attr-defined]
    assert config.env == base.env
    assert config.agent.batch_size == base.agent.batch_size


@pytest.mark.parametrize("names", [("agent", "agent.batch_size"), ("agent.batch_size", "agent")])
def test_settings_by_section_and_by_dotted_name_are_put_together(tmp_path: Path, names: tuple[str, str]) -> None:
    """Neither is lost, whichever stands first."""
    both = {"agent": {"n_step": 3}, "agent.batch_size": 16, "run.max_env_steps": 1000}
    sweep = read_sweep(_written(tmp_path, {"settings": {name: both[name] for name in (*names, "run.max_env_steps")}}))
    agent = sweep.config({})["agent"]
    assert (agent["n_step"], agent["batch_size"]) == (3, 16)


def test_grid_has_as_many_trials_as_combinations(tmp_path: Path) -> None:
    """Whatever `trials` says."""
    space = {"agent.n_step": [1, 2, 3], "agent.batch_size": [16, 32]}
    assert read_sweep(_written(tmp_path, {"method": "grid", "space": space})).trial_count == 6


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"base": None}, "base ''"),
        ({"base": "cartpole_dqm"}, "'cartpole_dqn'"),
        ({"metod": "grid"}, "'metod' 'method'"),
        ({"method": "bayes"}, "method 'bayes' 'grid' 'random' 'tpe'"),
        ({"trials": 0}, "trials 0 1"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds -1 0"),
        ({"seeds": [2**63]}, "seeds 0"),
        ({"seed": -1}, "seed -1 0"),
        ({"settings": {"run.max_wall_s": 9, "replay.storage.folder": "/log"}}, "replay.storage.folder '/log' {run}"),
        ({"settings": _END | {"cluster.replay": ["box:7401"]}}, "cluster.replay 'box:7401' --launcher.replay"),
        ({"settings": _END | {"cluster.replay": ["127.0.0.1:7401"]}}, "cluster.replay '127.0.0.1:7401' --launcher"),
        ({"settings": _END | {"replay.server.address": "127.0.0.1:7401"}}, "replay.server.address '127.0.0.1:7401'"),
        (
            {"share_replay": True, "settings": _END | {"learner.server.address": "127.0.0.1:7403"}},
            "learner.server.address '127.0.0.1:7403'",
        ),
        (
            {"settings": _END | {"launcher.replay": False, "cluster.replay": ["box:7401"]}},
            "launcher.replay table.name 'replay' share_replay",
        ),
        (_TABLES | {"seeds": [1, 2]}, "launcher.replay table.name 'a' share_replay"),
        (_TABLES | {"method": "random"}, "launcher.replay table.name 'a' share_replay"),
        (
            _TABLES | {"space": {"table.name": ["a", "b"], "agent.n_step": [1, 2]}},
            "launcher.replay table.name 'a' share_replay",
        ),
        ({"space": {"agent.learning_rat": [1]}}, "'agent.learning_rat'"),
        ({"space": {"agent.gamma": {"uniform": [0.9, 1.5]}}}, "gamma 1.5"),
        ({"space": {"agent.n_step": [1, 0, 2]}, "method": "grid"}, "n_step 0"),
        ({"space": {"run.seed": [1, 2]}}, "run.seed seeds"),
        ({"settings": {"run": {"seed": 7, "name": "x"}}}, "run.name run.seed seeds"),
        ({"space": {"run": [{"seed": 1}, {"seed": 2}]}}, "run.seed seeds"),
        ({"settings": {"run.target_return": None, "run.max_wall_s": 0}}, "run.max_env_steps"),
        ({"share_replay": True, "space": {"replay.max_streams": [1, 2]}}, "replay.max_streams share_replay"),
        ({"share_replay": True, "space": {"table.name": ["a", "b"]}}, "table.name share_replay"),
        (
            {"share_replay": True, "settings": {"table": {"name": "a"}, "actor": {"id": "b"}}},
            "actor.id table.name share_replay",
        ),
        ({"share_replay": True, "space": {"replay": [{"max_streams": 1}]}}, "replay.max_streams share_replay"),
        ({"share_replay": True, "settings": {"replay.shards": 2}}, "replay.shards 2 1 share_replay"),
        (
            {"parallel": 2, "settings": _END | {"launcher.status_page_port": 8080}},
            "launcher.status_page_port '127.0.0.1:8080' parallel 2 0",
        ),
        (
            {"parallel": 2, "settings": _END | {"replay.server.metrics_address": "127.0.0.1:9101"}},
            "replay.server.metrics_address '127.0.0.1:9101' parallel 2 0",
        ),
        (
            {"parallel": 2, "settings": _END | {"learner.server.address": "unix:///tmp/l.sock"}},
            "learner.server.address 'unix:///tmp/l.sock' parallel 2",
        ),
    ],
)
def test_wrong_file_is_refused_before_any_run(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """With the name of what is wrong."""
    with pytest.raises(ConfigError, match=naming(message)):
        read_sweep(_written(tmp_path, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": 1, "settings": _END | {"launcher.status_page_port": 8080}},
        {"parallel": 2, "settings": _END | {"learner.server.metrics_address": "127.0.0.1:0"}},
        {"parallel": 2, "share_replay": True, "settings": _END | {"replay.server.metrics_address": "127.0.0.1:9101"}},
    ],
)
def test_port_that_no_two_runs_share_is_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Of one run at a time, a free one of each, and of the replay service that all use."""
    read_sweep(_written(tmp_path, changes))


def test_tables_of_another_service_that_no_two_runs_fill_are_taken(tmp_path: Path) -> None:
    """A grid with one seed names each once."""
    assert read_sweep(_written(tmp_path, _TABLES)).trial_count == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"run.max_wall_s": 9, "replay.storage.folder": "{run}/log"}},
        {"settings": {"run.max_wall_s": 9, "replay.storage.folder": "/log"}, "trials": 1},
        {"settings": {"run.max_wall_s": 9, "replay.storage.folder": "/log"}, "share_replay": True},
    ],
)
def test_folder_of_a_log_that_no_two_runs_open_is_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Its own folder for each run, a single run, or one service for all, which has a folder of the sweep."""
    assert read_sweep(_written(tmp_path, changes)).document["settings"] == changes["settings"]


def test_sweep_continues_only_with_the_base_that_it_was_started_with(tmp_path: Path) -> None:
    """A base that was edited would mix trials of two configs; a folder of an older version has none to compare."""
    base = tmp_path / "base.yaml"
    base.write_text("env: {id: CartPole-v1}")
    folder = tmp_path / "sweep"
    folder.mkdir()
    for _ in range(2):
        journal_of(folder, read_sweep(_written(tmp_path, {"base": str(base)})))
    base.write_text("env: {id: Acrobot-v1}")
    changed = read_sweep(_written(tmp_path, {"base": str(base)}))
    with pytest.raises(ConfigError, match=naming(base, folder / "base.yaml", "--out")):
        journal_of(folder, changed)
    (folder / "base.yaml").unlink()
    journal_of(folder, changed)
    assert (folder / "base.yaml").exists()


def test_sweep_of_a_preset_continues_with_the_preset_that_it_was_started_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A preset that another version has changed cannot be set back. Another sweep has the new one."""
    file, folder = _written(tmp_path, {}), tmp_path / "sweep"
    folder.mkdir()
    assert kept_base_of(folder, file) is None
    journal_of(folder, read_sweep(file))
    kept = folder / "base.yaml"
    assert read_sweep(file, kept_base_of(folder, file)).base == read_sweep(file).base
    assert capsys.readouterr().err == ""
    kept.write_text(yaml.safe_dump(read_document(kept) | {"learner": {"publish_every": 77}}))
    plan = read_sweep(file, kept_base_of(folder, file))
    assert plan.config({})["learner"]["publish_every"] == 77
    journal_of(folder, plan)
    assert capsys.readouterr().err == f"note: preset cartpole_dqn has changed; this sweep continues with {kept}\n"
    assert kept_base_of(folder, _written(tmp_path, {"method": "grid"})) is None


def test_config_that_tidemill_wrote_is_a_base_whose_default_addresses_nobody_gave(tmp_path: Path) -> None:
    """It lists all settings. Those of the sweep's own file are given all the same, and a base of a user's gives its."""
    base = tmp_path / "config.yaml"
    write_document(load_config({}), base)
    read_sweep(_written(tmp_path, {"base": str(base)}))
    address = "127.0.0.1:7401"
    for changes in (
        {"settings": _END | {"replay": {"server": {"address": address}}}},
        {"base": str(tmp_path / "own.yaml")},
    ):
        (tmp_path / "own.yaml").write_text(f"replay: {{server: {{address: '{address}'}}}}")
        with pytest.raises(ConfigError, match=naming(f"replay.server.address '{address}'")):
            read_sweep(_written(tmp_path, {"base": str(base), **changes}))


def test_trials_config_is_a_file_that_tidemill_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes no address in it for one that a user gave, as the base may list the defaults."""
    monkeypatch.setattr(runs, "started", lambda *_: Mock())
    config = {"replay": {"server": {"address": "127.0.0.1:7401"}}}
    runs.start(tmp_path, Trial(0, {}), 1, 0, config)
    file = tmp_path / "trial-0000" / "config.yaml"
    assert (given_in(file), read_document(file)) == ({}, config)


def test_file_that_is_not_there_is_named_as_what_was_given(tmp_path: Path) -> None:
    """It is not taken for --config, and no config is proposed for it."""
    with pytest.raises(ConfigError, match=naming(tmp_path / "space.yaml")):
        read_sweep(tmp_path / "space.yaml")


def test_sweep_of_the_examples_is_whole() -> None:
    """The file that the README names."""
    sweep = read_sweep(Path(__file__).parents[4] / "examples" / "sweeps" / "cartpole.yaml")
    assert (sweep.trial_count, sweep.settings.seeds) == (4, (1, 2))
