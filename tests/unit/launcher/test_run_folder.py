"""A run's folder is made once, held by one launcher, and never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.run_folder import RunFolder, is_running, located
from tidemill.config.load import from_document, load, read_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import AlreadyExists, FailedPrecondition


def _config(root: Path) -> RunConfig:
    return RunConfig(run=RunSettings(root=str(root), name="lander", seed=7))


def test_folder_holds_settings_that_load_back_and_the_versions(tmp_path: Path) -> None:
    """config.yaml repeats the run; the versions it ran with are comments."""
    with RunFolder.create(_config(tmp_path), again=False) as folder:
        assert from_document(RunConfig, read_document(folder.config_file)) == _config(tmp_path)
        assert "# python 3." in folder.config_file.read_text()
        loaded = load(RunConfig, ["--config", str(folder.config_file)], prog="x", description="x")
    assert loaded == _config(tmp_path)


def test_folder_of_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    """The message says what to do instead."""
    RunFolder.create(_config(tmp_path), again=False).close()
    with pytest.raises(AlreadyExists, match="tidemill resume"):
        RunFolder.create(_config(tmp_path), again=False)


def test_folder_of_an_earlier_run_is_moved_aside_when_asked(tmp_path: Path) -> None:
    """Twice again: lander-1 is the oldest, lander-2 the next, lander the newest; nothing is lost."""
    for mark in ("first", "second", "third"):
        with RunFolder.create(_config(tmp_path), again=True) as folder:
            (folder.path / "mark").write_text(mark)
    marks = {path.name: (path / "mark").read_text() for path in tmp_path.iterdir()}
    assert marks == {"lander-1": "first", "lander-2": "second", "lander": "third"}


def test_folder_is_held_by_one_launcher_at_a_time(tmp_path: Path) -> None:
    """A second launcher is refused, also when it would move the folder away; afterwards it is free."""
    folder = RunFolder.create(_config(tmp_path), again=False)
    assert is_running(folder.path)
    with pytest.raises(FailedPrecondition, match="is running"):
        RunFolder.open(folder.path)
    with pytest.raises(FailedPrecondition, match="is running"):
        RunFolder.create(_config(tmp_path), again=True)
    folder.close()
    assert not is_running(folder.path)
    RunFolder.open(folder.path).close()


def test_folder_says_where_the_services_are_only_while_they_run(tmp_path: Path) -> None:
    """cluster.yaml is there while the folder is held, and can be given to an actor as --config."""
    with RunFolder.create(_config(tmp_path), again=False) as folder:
        folder.write_cluster(_config(tmp_path))
        assert from_document(RunConfig, read_document(folder.cluster_file)).run.name == "lander"
    assert not folder.cluster_file.exists()


def test_result_of_an_earlier_end_is_kept_when_a_run_goes_on(tmp_path: Path) -> None:
    """Each end keeps its result under a number."""
    with RunFolder.create(_config(tmp_path), again=False) as folder:
        for text in ("one", "two"):
            (folder.path / "result.json").write_text(text)
            folder.set_result_aside()
        assert (folder.path / "result-1.json").read_text() == "one"
        assert (folder.path / "result-2.json").read_text() == "two"
        assert not (folder.path / "result.json").exists()
        folder.set_result_aside()  # nothing to do


def test_settings_follow_a_folder_that_was_moved(tmp_path: Path) -> None:
    """A copied or renamed run is resumed where it lies."""
    moved = located(_config(Path("elsewhere")), tmp_path / "renamed")
    assert moved.run.folder == tmp_path / "renamed"
    assert moved.run.seed == 7
