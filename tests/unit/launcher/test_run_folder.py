"""A run's folder is made once, held by one launcher, and never overwritten."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.config.load import from_document, load, read_document
from tidemill.config.run import RANK_FAILURE, RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import LauncherSettings, LearnerSettings, ReplaySettings, StorageSettings
from tidemill.config.sources import SourceSettings
from tidemill.errors import AlreadyExists, ConfigError, FailedPrecondition, FatalError
from tidemill.params.run_end import FILMING, PAUSED
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.launcher.commands.control import status
from tidemill.services.launcher.commands.train import resume
from tidemill.services.launcher.run.folder import (
    RunFolder,
    check_free,
    check_is_run,
    check_names_run,
    is_running,
    keep_settings,
    with_run_paths,
    write_config,
)
from tidemill.services.launcher.run.paths import (
    check_finds_log,
    check_keeps_shards,
    check_new_log,
    check_owns_log,
    log_folders,
    with_absolute_log,
)
from tidemill.services.launcher.view.poller import describe_evaluating
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.tools.export import export
from tidemill.services.tools.log import log
from tidemill.services.tools.page import page


def _config(root: Path) -> RunConfig:
    return RunConfig(run=RunSettings(root=str(root), name="lander", seed=7))


def _trained(folder: Path) -> None:
    (folder / "result.json").write_text("{}")


def test_folder_holds_settings_that_load_back_and_the_versions(tmp_path: Path) -> None:
    """config.yaml repeats the run; the versions it ran with are comments."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        assert from_document(RunConfig, read_document(folder.config_file)) == _config(tmp_path)
        assert "# python 3." in folder.config_file.read_text()
        loaded = load(RunConfig, ["--config", str(folder.config_file)], prog="x", description="x")
    assert loaded == _config(tmp_path)


def test_folder_of_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    """The message says what to do instead."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        _trained(folder.path)
    with pytest.raises(AlreadyExists, match="tidemill resume"):
        RunFolder.create(_config(tmp_path), fresh=False)


def test_folder_of_an_earlier_run_is_moved_aside_when_asked(tmp_path: Path) -> None:
    """Twice again: lander-1 is the oldest, lander-2 the next, lander the newest; nothing is lost."""
    for mark in ("first", "second", "third"):
        with RunFolder.create(_config(tmp_path), fresh=True) as folder:
            (folder.path / "mark").write_text(mark)
            _trained(folder.path)
    marks = {path.name: (path / "mark").read_text() for path in tmp_path.iterdir()}
    assert marks == {"lander-1": "first", "lander-2": "second", "lander": "third"}


@pytest.mark.parametrize("fresh", [False, True])
def test_folder_of_a_run_that_never_trained_is_taken_over(tmp_path: Path, fresh: bool) -> None:
    """A first version of the parameters, an empty log and a failed start's logs are nobody's work: they go."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        names = ("params/0000000001.json", "params/0000000001.copy.json")
        for name in (*names, "replay/0/00000001.log", "logs/actor-0.log", "scores.csv"):
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / name).write_text("the only line")
    corrected = replace(_config(tmp_path), run=replace(_config(tmp_path).run, seed=8))
    with RunFolder.create(corrected, fresh=fresh) as folder:
        assert from_document(RunConfig, read_document(folder.config_file)).run.seed == 8
        left = {path.name for path in folder.path.rglob("*")}
    assert left == {".lock", "config.yaml", "logs"}
    assert [path.name for path in tmp_path.iterdir()] == ["lander"]


@pytest.mark.parametrize(
    "name, text",
    [
        ("result.json", "{}"),
        ("scores.csv", "wall_s\n1.0\n"),
        ("checkpoints/checkpoint-000001-00000001.safetensors", ""),
        ("params/0000000002.json", "{}"),
        ("replay/0/00000001.log", " " * 2_000_000),
    ],
)
def test_folder_that_holds_something_to_go_on_with_is_kept(tmp_path: Path, name: str, text: str) -> None:
    """A result, a score, a checkpoint, a version after the first, or two MB of experience."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text(text)
    with pytest.raises(AlreadyExists, match=naming("tidemill resume")):
        RunFolder.create(_config(tmp_path), fresh=False)
    assert (tmp_path / "lander" / name).read_text() == text


@pytest.mark.parametrize("name", ["scores.csv", "checkpoints/checkpoint-000001-00000001.safetensors"])
def test_folder_that_cannot_be_read_now_is_not_taken_for_one_that_never_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is deleted: neither while its files cannot be read nor afterwards."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("wall_s\n1.0\n")
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with monkeypatch.context() as patched:
        for owner, call in ((os, "listdir"), (os, "scandir"), (Path, "read_bytes"), (Path, "read_text")):
            patched.setattr(owner, call, Mock(side_effect=refused))
        with pytest.raises(ConfigError, match=naming("lander", "Permission denied")):
            RunFolder.create(_config(tmp_path), fresh=False)
    assert (tmp_path / "lander" / name).exists()


def test_run_that_trains_and_ends_while_another_start_waits_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a run has trained is judged again once its folder is locked."""
    RunFolder.create(_config(tmp_path), fresh=False).close()
    locks = fcntl.flock

    def late(*arguments: int) -> None:
        _trained(tmp_path / "lander")
        locks(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(AlreadyExists, match="tidemill resume"):
        RunFolder.create(_config(tmp_path), fresh=False)
    assert (tmp_path / "lander" / "result.json").exists()
    RunFolder.open(tmp_path / "lander").close()


@pytest.mark.parametrize("refused", [errno.EACCES, errno.EROFS, errno.EMFILE])
def test_run_whose_lock_cannot_be_opened_for_writing_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """It may be another user's. Without such an error, and without a lock, it does not run."""
    opens, is_read_only = os.open, refused in (errno.EACCES, errno.EROFS)

    def refuse(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_RDWR or not is_read_only:
            raise OSError(refused, os.strerror(refused))
        return opens(path, flags, *more)

    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        _trained(folder.path)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse)
            assert is_running(folder.path)
            with pytest.raises(FailedPrecondition, match=naming("tidemill ctl stop")):
                RunFolder.create(_config(tmp_path), fresh=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert is_running(folder.path) == (not is_read_only)
    assert not is_running(tmp_path / "none")


@pytest.mark.parametrize("call", ["open", "mkdir", "stat", "rename"])
@pytest.mark.parametrize("refused, kind", [(errno.EACCES, ConfigError), (errno.EIO, FatalError)])
def test_folder_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, refused: int, kind: type[Exception]
) -> None:
    """It is another user's, or its disk fails."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        _trained(folder.path)
    error = OSError(refused, os.strerror(refused))
    with monkeypatch.context() as patched:
        patched.setattr(os if call == "open" else Path, call, Mock(side_effect=error))
        with pytest.raises(kind, match=naming(str(folder.path), os.strerror(refused))) as raised:
            RunFolder.create(_config(tmp_path), fresh=True) if call == "rename" else RunFolder.open(folder.path)
    assert raised.type is kind


def test_folder_is_held_by_one_launcher_at_a_time(tmp_path: Path) -> None:
    """A second launcher is refused, also when it would move the folder away; afterwards it is free."""
    folder = RunFolder.create(_config(tmp_path), fresh=False)
    assert is_running(folder.path)
    with pytest.raises(FailedPrecondition, match=naming("tidemill ctl stop")):
        RunFolder.open(folder.path)
    with pytest.raises(FailedPrecondition, match=naming("tidemill ctl stop")):
        RunFolder.create(_config(tmp_path), fresh=False)
    _trained(folder.path)
    for fresh in (False, True):
        with pytest.raises(FailedPrecondition, match=naming("tidemill ctl stop")):
            check_free(folder.path, fresh=fresh)
        with pytest.raises(FailedPrecondition, match=naming("tidemill ctl stop")):
            RunFolder.create(_config(tmp_path), fresh=fresh)
    folder.close()
    assert not is_running(folder.path)
    RunFolder.open(folder.path).close()


def test_folder_says_where_the_services_are_only_while_they_run(tmp_path: Path) -> None:
    """cluster.yaml is there while the folder is held, and can be given to an actor as --config, of whatever version."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        folder.write_cluster(_config(tmp_path))
        assert "# tidemill " in folder.cluster_file.read_text()
        assert from_document(RunConfig, read_document(folder.cluster_file)).run.name == "lander"
    assert not folder.cluster_file.exists()


def test_marks_of_killed_processes_are_gone_when_a_run_is_resumed(tmp_path: Path) -> None:
    """The run is neither paused any more nor without a video at its next end."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        for name in (FILMING, PAUSED):
            (folder.path / name).touch()
        folder.set_end_aside()
        assert not any((folder.path / name).exists() for name in (FILMING, PAUSED))


def test_result_of_an_earlier_end_is_kept_when_a_run_goes_on(tmp_path: Path) -> None:
    """Each end keeps its result under a number."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        for text in ("one", "two"):
            (folder.path / "result.json").write_text(text)
            folder.set_end_aside()
        assert (folder.path / "result-1.json").read_text() == "one"
        assert (folder.path / "result-2.json").read_text() == "two"
        assert not (folder.path / "result.json").exists()
        folder.set_end_aside()  # nothing to do
        (folder.path / "result-1.json").unlink()
        (folder.path / "result.json").write_text("three")
        folder.set_end_aside()
        results = {file.name: file.read_text() for file in folder.path.glob("result*")}
    assert results == {"result-1.json": "three", "result-2.json": "two"}


def test_what_a_learner_restored_is_taken_once_for_each_of_its_starts(tmp_path: Path) -> None:
    """Also if a second start restores the same; one that writes nothing is none."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        store = CheckpointStore(folder.path / "checkpoints", keep=1)
        assert folder.take_restored() == ""
        (folder.path / "checkpoints").mkdir()
        for _ in range(2):
            store.note_restored("checkpoint of 900 updates")
            assert [folder.take_restored(), folder.take_restored()] == ["checkpoint of 900 updates", ""]


def test_failure_of_a_rank_is_told_once_also_if_it_fails_again_in_the_same_way(tmp_path: Path) -> None:
    """The words are the same each time."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        assert folder.take_rank_failure() == ""
        for written_ns in (1, 2):
            (folder.path / RANK_FAILURE).write_text("lost rank 1\n")
            os.utime(folder.path / RANK_FAILURE, ns=(written_ns, written_ns))
            assert [folder.take_rank_failure(), folder.take_rank_failure()] == ["lost rank 1", ""]


def test_failure_of_a_rank_is_forgotten_when_the_run_is_resumed(tmp_path: Path) -> None:
    """It is that of the session before."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        assert folder.read_rank_failure() == ""
        (folder.path / RANK_FAILURE).write_text("lost rank 1\n")
        assert folder.read_rank_failure() == "lost rank 1"
        folder.set_end_aside()
        assert folder.read_rank_failure() == ""


def test_evaluation_that_was_cut_short_is_forgotten_when_the_run_is_resumed(tmp_path: Path) -> None:
    """Its evaluator was killed; that of the new session may take long to start."""
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        ProgressFile(folder.path).write(7, 3, 30)
        assert describe_evaluating(folder.path)
        folder.set_end_aside()
        assert describe_evaluating(folder.path) == ""


def test_settings_follow_a_folder_that_was_moved(tmp_path: Path) -> None:
    """A copied or renamed run is resumed where it lies."""
    moved = with_run_paths(_config(Path("elsewhere")), tmp_path / "renamed")
    assert moved.run.folder == tmp_path / "renamed"
    assert moved.run.seed == 7


def test_folder_with_a_config_of_somebodys_own_is_left_alone(tmp_path: Path) -> None:
    """It was taken for a run that never trained, and emptied."""
    own = tmp_path / "lander" / "my_env.py"
    own.parent.mkdir()
    own.write_text("print()")
    (own.parent / "config.yaml").write_text("run: {seed: 3}")
    for fresh in (False, True):
        with pytest.raises(AlreadyExists, match=naming("lander", "config.yaml", "run.name")):
            RunFolder.create(_config(tmp_path), fresh=fresh)
    with pytest.raises(AlreadyExists, match=naming("lander", "config.yaml", "run.name")):
        keep_settings(_config(tmp_path))
    assert own.exists()
    assert (own.parent / "config.yaml").read_text() == "run: {seed: 3}"


def test_config_of_somebodys_own_is_not_resumed(tmp_path: Path) -> None:
    """The file was replaced by resolved settings, and trained with beside the user's files, or in a sweep's trial."""
    folder = tmp_path / "trial-0003"
    RunFolder.create(RunConfig(run=RunSettings(root=str(folder), name="seed-1")), fresh=False).close()
    (folder / "config.yaml").write_text("run: {seed: 3}  # mine")
    for start in (lambda: RunFolder.open(folder), lambda: resume([str(folder)])):
        with pytest.raises(ConfigError, match=naming(folder, "train --config", folder / "seed-1")):
            start()
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "seed-1"}
    assert (folder / "config.yaml").read_text() == "run: {seed: 3}  # mine"
    _trained(folder)  # restored from a backup without files that begin with a dot
    RunFolder.open(folder).close()


@pytest.mark.parametrize("refused, kind", [(errno.EACCES, ConfigError), (errno.EIO, FatalError)])
def test_settings_are_not_wrong_where_the_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, kind: type[Exception]
) -> None:
    """An engine starts `tidemill check` again after any error but a wrong setting."""
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(refused, os.strerror(refused))))
    with pytest.raises(kind, match=naming("config.yaml", os.strerror(refused))) as raised:
        keep_settings(_config(tmp_path))
    assert raised.type is kind


def test_options_that_name_another_run_are_refused(tmp_path: Path) -> None:
    """The folder decides name and root; config.yaml may still have those from before it was moved."""
    path, before = tmp_path / "moved", _config(Path("elsewhere"))
    named = RunSettings(root=str(tmp_path), name="moved", seed=7)
    for now in (before, replace(before, run=named)):
        check_names_run(before, now, path)
    for now, words in (
        (replace(before, run=replace(before.run, name="b")), "run.name 'b' moved"),
        (replace(before, run=replace(before.run, root="/b")), "run.root '/b' moved"),
    ):
        with pytest.raises(ConfigError, match=naming(words)):
            check_names_run(before, now, path)


def _with_log(root: Path, folder: str, shards: int = 1) -> RunConfig:
    replay = ReplaySettings(shards=shards, storage=StorageSettings(folder=folder))
    return replace(_config(root), replay=replay)


@pytest.mark.parametrize(
    "folder, shards, where", [("log", 1, "log"), ("log", 2, "log/1"), ("log/{shard}", 2, "log/1"), ("log", 1, "")]
)
def test_new_run_takes_over_no_log_of_another(tmp_path: Path, folder: str, shards: int, where: str) -> None:
    """An empty folder may be there."""
    (tmp_path / "log").mkdir()
    config = _with_log(tmp_path, f"{tmp_path}/{folder}", shards)
    check_new_log(config, fresh=False)
    if where:
        (tmp_path / where).mkdir(exist_ok=True)
        (tmp_path / where / "00000001.log").touch()
        with pytest.raises(AlreadyExists, match=naming("replay.storage.folder", tmp_path / where, "{run} resume")):
            check_new_log(config, fresh=False)
        check_new_log(replace(config, launcher=LauncherSettings(replay=False)), fresh=False)


def test_run_that_never_trained_finds_its_own_log(tmp_path: Path) -> None:
    """As after a failed start; with --fresh, or once it has trained, its log is that of an earlier run."""
    config = _with_log(tmp_path, f"{tmp_path}/log")
    RunFolder.create(config, fresh=False).close()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "00000001.log").touch()
    check_new_log(config, fresh=False)
    for each, fresh in ((config, True), (replace(config, run=replace(config.run, name="other")), False)):
        with pytest.raises(AlreadyExists, match=naming("replay.storage.folder", "an earlier run")):
            check_new_log(each, fresh=fresh)
    _trained(config.run.folder)
    with pytest.raises(AlreadyExists, match=naming("replay.storage.folder", "an earlier run")):
        check_new_log(config, fresh=False)


@pytest.mark.parametrize(
    "source, is_taken",
    [
        (SourceSettings(), True),
        (SourceSettings(table="walks"), True),
        (SourceSettings(table="replay"), False),
        (SourceSettings(replay=("127.0.0.1:7411",)), False),
    ],
)
def test_log_may_hold_a_source_of_the_run(tmp_path: Path, source: SourceSettings, is_taken: bool) -> None:
    """Another table than the one that the run fills, on the same replay service."""
    (tmp_path / "00000001.log").touch()
    config = replace(
        _with_log(tmp_path / "runs", str(tmp_path)), learner=LearnerSettings(sources={"demonstrations": source})
    )
    refused = pytest.raises(AlreadyExists, match=naming("replay.storage.folder", tmp_path))
    with nullcontext() if is_taken else refused:
        check_new_log(config, fresh=True)


def test_table_that_another_run_filled_is_no_new_one(tmp_path: Path) -> None:
    """Beside the demonstrations on its replay service a run would train on the steps of a run before it."""
    (tmp_path / "00000001.log").touch()
    sources = LearnerSettings(sources={"demonstrations": SourceSettings()})
    config = replace(_with_log(tmp_path / "runs", str(tmp_path)), learner=sources)
    RunFolder.create(config, fresh=False).close()
    check_new_log(config, fresh=True)
    _trained(config.run.folder)
    for name in ("lander", "other"):
        again = replace(config, run=replace(config.run, name=name))
        with pytest.raises(AlreadyExists, match=naming("table.name 'replay'", tmp_path, "move", config.run.folder)):
            check_new_log(again, fresh=True)
        check_new_log(replace(again, table=replace(config.table, name="second")), fresh=True)


def test_log_in_the_folder_of_a_run_is_its_own(tmp_path: Path) -> None:
    """It is moved aside or emptied with the run."""
    for folder in ("{run}/log", str(tmp_path / "lander" / "log")):
        (tmp_path / "lander" / "log").mkdir(parents=True, exist_ok=True)
        (tmp_path / "lander" / "log" / "00000001.log").touch()
        check_new_log(_with_log(tmp_path, folder), fresh=False)


@pytest.mark.parametrize("folder", ["", "{run}/replay", "/fast/log", "log"])
def test_folder_of_the_log_is_found_again_from_another_directory(tmp_path: Path, folder: str) -> None:
    """A relative one is written with the directory that it was given in."""
    found = with_absolute_log(_with_log(tmp_path, folder)).replay.storage.folder
    assert found == (str(Path("log").absolute()) if folder == "log" else folder)


def test_relative_log_of_an_older_run_is_looked_for_before_its_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another directory it would be another folder, for good; one that is given on purpose may be empty."""
    config = _with_log(tmp_path, "log", shards=2)
    RunFolder.create(config, fresh=False).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=naming("replay.storage.folder 'log'", tmp_path / "log", "directory")):
        resume([str(config.run.folder)])
    for folder in ("new", "/fast/log", "{run}/log"):
        check_finds_log(config, _with_log(tmp_path, folder))
    (tmp_path / "log" / "1").mkdir(parents=True)
    (tmp_path / "log" / "1" / "00000001.log").touch()
    check_finds_log(config, config)


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_copy_of_a_run_does_not_write_to_the_log_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, is_relative: bool
) -> None:
    """Where the log is outside the folder. A run that was renamed keeps its log, and one with a log in its folder."""
    root = tmp_path / "runs"
    monkeypatch.chdir(tmp_path if is_relative else "/")
    config = _with_log(Path("runs") if is_relative else root, f"{tmp_path}/log", shards)
    RunFolder.create(config, fresh=False).close()
    original, copy = root / "lander", root / "copy"
    shutil.copytree(original, copy)
    placed = with_run_paths(config, copy)
    with pytest.raises(AlreadyExists, match=naming("replay.storage.folder", tmp_path / "log", original, copy)):
        resume([str(copy)])
    check_owns_log(config, with_run_paths(config, original))
    (root / "link").symlink_to(original)
    check_owns_log(config, with_run_paths(config, root / "link"))
    for folder in ("", "{run}/log", f"{tmp_path}/new"):
        check_owns_log(config, with_run_paths(_with_log(root, folder, shards), copy))
    check_owns_log(config, replace(placed, launcher=LauncherSettings(replay=False)))
    check_owns_log(config, replace(placed, table=replace(config.table, name="second")))
    original.rename(root / "elsewhere")
    check_owns_log(config, placed)


@pytest.mark.parametrize("folder", ["", "{run}/log/{shard}", "/elsewhere"])
@pytest.mark.parametrize("then, now", [(1, 2), (2, 1), (3, 2)])
def test_number_of_shards_that_wrote_the_log_stays(tmp_path: Path, folder: str, then: int, now: int) -> None:
    """Another number would restore a part of the table and count its decisions twice; without a log any is taken."""
    before, config = (
        _with_log(tmp_path, f"{tmp_path}{folder}" if folder.startswith("/") else folder, shards)
        for shards in (then, now)
    )
    RunFolder.create(before, fresh=False).close()
    check_keeps_shards(before, config)
    for written in log_folders(before):
        written.mkdir(parents=True)
        (written / "00000001.log").touch()
    with pytest.raises(ConfigError, match=naming(f"replay.shards is {now}", then, "--run.name")):
        resume([str(before.run.folder), "--replay.shards", str(now)])
    check_keeps_shards(before, before)
    check_keeps_shards(before, _with_log(tmp_path, "{run}/new", now))


@pytest.fixture(name="exported")
def _exported(tmp_path: Path) -> Path:
    """Return a folder as `tidemill export` writes it: with settings and scores, as a run's."""
    folder = tmp_path / "lander"
    folder.mkdir()
    (folder / "scores.csv").write_text("wall_s\n1.0\n")
    (folder / "bundle.json").write_text("{}")
    write_config(_config(tmp_path), folder / "config.yaml")
    return folder


@pytest.mark.parametrize("command", [resume, status, log, page, export])
def test_exported_policy_is_not_taken_for_a_run(exported: Path, command: Callable[[Sequence[str]], int]) -> None:
    """Its folder is named, and stays as it is."""
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    with pytest.raises(ConfigError, match=naming(exported, "is an exported policy", "folder of the run")):
        command([str(exported), *(["--to", "wandb"] if command is log else [])])
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


@pytest.mark.parametrize("fresh", [False, True])
def test_new_run_leaves_an_exported_policy_alone(exported: Path, tmp_path: Path, fresh: bool) -> None:
    """It has scores, and was offered for `tidemill resume` or moved aside."""
    with pytest.raises(AlreadyExists, match=naming("lander", "is not the folder of a run", "run.name")):
        RunFolder.create(_config(tmp_path), fresh=fresh)
    assert (exported / "bundle.json").exists()


@pytest.mark.parametrize("given", ["quickstart", "runs/other", "other/x"])
def test_runs_are_listed_where_a_folder_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Those beside it, or else those in runs/; an exported policy is not among them."""
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/quickstart", "quickstart-policy"):
        Path(folder).mkdir(parents=True)
        write_config(_config(tmp_path), Path(folder) / "config.yaml")
    Path("quickstart-policy/bundle.json").touch()
    with pytest.raises(ConfigError, match=naming(given, "runs/quickstart")) as raised:
        check_is_run(Path(given))
    assert "policy" not in str(raised.value)


def test_settings_of_a_run_are_not_taken_from_another_file(tmp_path: Path) -> None:
    """`--config` is refused with its value; the settings are in the run's folder."""
    RunFolder.create(_config(tmp_path), fresh=False).close()
    for words in (["--config", "new.yaml"], ["--config=new.yaml"]):
        with pytest.raises(ConfigError, match=naming("--config", "'new.yaml'", tmp_path / "lander/config.yaml")):
            resume([str(tmp_path / "lander"), *words])


def test_checked_settings_are_kept_again_and_taken_over_by_a_launcher(tmp_path: Path) -> None:
    """`tidemill check` writes them, at every start of an engine; `train` of the same name may follow."""
    for _ in range(2):
        keep_settings(_config(tmp_path))
    with RunFolder.create(_config(tmp_path), fresh=False) as folder:
        assert from_document(RunConfig, read_document(folder.config_file)) == _config(tmp_path)


@pytest.mark.parametrize("fresh", [False, True])
def test_files_of_a_user_in_the_folder_of_a_run_that_never_trained_stay(tmp_path: Path, fresh: bool) -> None:
    """Those from before the first start and those from before the second, also in folders that the run made."""
    path = tmp_path / "lander"
    path.mkdir()
    (path / "notes.md").write_text("mine")
    with RunFolder.create(_config(tmp_path), fresh=fresh):
        left = ("params/0000000001.json", "logs/actor-0.log", "logs/actor-0.log.1", "scores.csv.1a2b3c4d.tmp")
        logs = ("data/0001.log", "logs/notes.txt", "logs/console.log", "replay/old/00000001.log")
        own = ("my_env.py", *logs, "params/mine.pt", "plots/mine.png", "curves.csv")
        for name in (*left, *own):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(name)
    with RunFolder.create(_config(tmp_path), fresh=fresh):
        files = {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}
    assert files.keys() == {*own, "notes.md", "config.yaml", ".lock"}
    assert {name: files[name] for name in own} == {name: name for name in own}
    assert [each.name for each in tmp_path.iterdir()] == ["lander"]


@pytest.mark.parametrize("name", ["logs/learner.log", "scores.csv", "result.json", "params/0000000001.json"])
def test_folder_with_files_that_a_run_would_replace_is_left_alone(tmp_path: Path, name: str) -> None:
    """They are not of a launcher's run, which would write others of these names and delete them later."""
    own = tmp_path / "lander" / name
    own.parent.mkdir(parents=True)
    own.write_text("mine\nmine\n")
    for fresh in (False, True):
        with pytest.raises(AlreadyExists, match=naming("lander", name, "is not the folder of a run", "run.name")):
            check_free(tmp_path / "lander", fresh=fresh)
        with pytest.raises(AlreadyExists, match=naming("lander", name, "is not the folder of a run", "run.name")):
            RunFolder.create(_config(tmp_path), fresh=fresh)
    assert own.read_text() == "mine\nmine\n"
    assert not (tmp_path / "lander" / ".lock").exists()
    keep_settings(_config(tmp_path))  # of an engine, whose parameter server may have started first


@pytest.mark.parametrize(
    "folder, where",
    [
        ("{run}/log", "log"),
        ("{run}/log", "log/0"),
        ("{run}/log/{shard}", "log/0"),
        ("{run}/shard-{shard}", "shard-0"),
        ("{run}/{shard}/log", "0/log"),
        ("{run}/{shard}", "0"),
        ("{run}", "0"),
        ("ROOT/lander/log", "log"),
        ("", "replay/0"),
        (None, "replay/0"),
    ],
)
def test_log_of_a_run_that_never_trained_goes_with_it(tmp_path: Path, folder: str | None, where: str) -> None:
    """Wherever the run kept it in its folder; that of a service that another program runs stays."""
    config = _with_log(tmp_path, (folder or "").replace("ROOT", str(tmp_path)))
    if folder is None:
        config = replace(config, launcher=LauncherSettings(replay=False))
    log = tmp_path / "lander" / where
    with RunFolder.create(config, fresh=False):
        log.mkdir(parents=True)
        for name in (".lock", "newest", "00000001.log", "00000001.copies", "00000001.snapshot"):
            (log / name).touch()
    RunFolder.create(config, fresh=False).close()
    assert log.exists() == (folder is None)


@pytest.mark.parametrize("name", ["checkpoints/checkpoint-000001-00000001.safetensors", "params/0000000002.json"])
def test_run_of_services_started_by_hand_is_not_continued_as_a_new_one(tmp_path: Path, name: str) -> None:
    """It has no config.yaml: it cannot be resumed, but moved aside."""
    file = tmp_path / "lander" / name
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(AlreadyExists, match=naming("lander", "already holds a run", "--run.name", "--fresh")) as raised:
        RunFolder.create(_config(tmp_path), fresh=False)
    assert "resume" not in str(raised.value)
    with RunFolder.create(_config(tmp_path), fresh=True) as folder:
        assert {each.name for each in folder.path.iterdir()} == {".lock", "config.yaml", "logs"}
    assert (tmp_path / "lander-1" / name).exists()
