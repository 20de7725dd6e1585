"""Reading a run's records for a logger: each once and in order, whatever was cut, over restarts of either side."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.errors import ConfigError, DataLoss, FailedPrecondition, FatalError
from tidemill.file_lock import open_locked, unlock
from tidemill.loggers.interface import LoggedRun, RunLogger, make_logger
from tidemill.scores import COLUMNS, Score
from tidemill.services.tools.log import Follower, log

_SCORE = Score(1.5, 200, 400, 3, 10, 12.5, 1.0, 11.0, 14.0, 12.0, 50.0)


class Recorder(RunLogger):
    """Keeps what it is sent in a file below the run; fails at a step of 666 while a file says so."""

    def __init__(self, run: LoggedRun) -> None:
        """Take up the run that was sent before."""
        self.id = run.id or f"new-{run.name}-{run.config['agent']['gamma']}"
        self._folder = run.folder

    def log(self, step: int, scalars: Mapping[str, float], time_s: float) -> None:
        """Keep it."""
        if step == 666 and (self._folder / "offline").exists():
            raise OSError("no network")
        self._keep({"step": step, "time": time_s, **scalars})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keep it."""
        self._keep({"result": dict(result)})

    def _keep(self, record: dict[str, Any]) -> None:
        with (self._folder / "sent.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


class Unnamed(Recorder):
    """Has the same id for all runs."""

    id = ""

    def __init__(self, run: LoggedRun) -> None:
        """Take up the run that was sent before."""
        self._folder = run.folder


class Named(Unnamed):
    """Has the same id for runs of the same name."""

    def __init__(self, run: LoggedRun) -> None:
        """Take up the run that was sent before."""
        super().__init__(run)
        self.id = run.id or run.name


NAME = f"{__name__}:Recorder"


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("agent: {gamma: 0.5}\n")
    return tmp_path


def _append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text)


def _line(step: int, **scalars: float | None) -> str:
    return json.dumps({"time": 1.0, "step": step} | scalars) + "\n"


def _sent(run: Path) -> list[dict[str, Any]]:
    file = run / "sent.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _steps(run: Path) -> list[int]:
    return [record["step"] for record in _sent(run)]


def test_run_of_a_sweep_is_named_by_its_trial(tmp_path: Path) -> None:
    """All runs of a sweep are `seed-1`; elsewhere a folder's name is the run's."""
    for name, sent in {
        "tuned/trial-0003/seed-1": "tuned-trial-0003-seed-1",
        "tuned/trial-0003/mine": "mine",
        "tuned/seed-1": "seed-1",
    }.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("agent: {gamma: 0.5}\n")
        assert Follower(folder, NAME).id == f"new-{sent}-0.5"


def test_each_line_is_sent_once_over_restarts(run: Path) -> None:
    """A follower that starts later continues where the one before it stopped, under the same name there."""
    _append(run, _line(1, loss=0.5) + _line(2, loss=0.25))
    first = Follower(run, NAME)
    assert first.send_new() == 2
    assert first.send_new() == 0
    _append(run, _line(3))
    second = Follower(run, NAME)
    assert second.id == first.id == f"new-{run.name}-0.5"
    assert second.send_new() == 1
    assert _sent(run) == [
        {"step": 1, "time": 1.0, "loss": 0.5},
        {"step": 2, "time": 1.0, "loss": 0.25},
        {"step": 3, "time": 1.0},
    ]


def test_line_that_is_being_written_waits(run: Path) -> None:
    """Half a line is not read."""
    follower, line = Follower(run, NAME), _line(7, loss=1.0)
    _append(run, line[:9])
    assert follower.send_new() == 0
    _append(run, line[9:])
    assert follower.send_new() == 1
    assert _steps(run) == [7]


def test_lines_that_are_none_and_values_that_are_not_finite_are_left_out(run: Path) -> None:
    """A logger gets numbers only."""
    _append(run, "[]\nnothing\n{}\n" + _line(4, loss=None, q=2.0))
    Follower(run, NAME).send_new()
    assert _sent(run) == [{"step": 4, "time": 1.0, "q": 2.0}]


def test_more_than_a_mebibyte_is_sent_whole(run: Path) -> None:
    """Files are read in parts; a line at the border of two is sent once."""
    _append(run, "".join(_line(step, **{"a" * 1000: 1.0}) for step in range(2500)))
    assert Follower(run, NAME).send_new() == 2500
    assert _steps(run) == list(range(2500))


def test_evaluations_and_confirmations_are_sent_by_their_own_names(run: Path) -> None:
    """Each row of scores.csv and confirmations.csv, over the updates of its version."""
    header = ",".join(COLUMNS) + "\n"
    row = ",".join("" if cell is None else str(cell) for cell in dataclasses.astuple(_SCORE)) + "\n"
    (run / "scores.csv").write_text(header + row)
    follower = Follower(run, NAME)
    assert follower.send_new() == 1
    (run / "scores.csv").write_text(header + row + row)
    (run / "confirmations.csv").write_text(header + row)
    assert Follower(run, NAME).send_new() == 2
    first, _, third = _sent(run)
    assert (first["step"], first["evaluation/mean"], first["evaluation/mean_length"]) == (200, 12.5, 50.0)
    assert "evaluation/human_normalised" not in first
    assert third["confirmation/env_steps"] == 400


def test_curves_of_actors_and_cluster_are_sent_under_their_writers_names(run: Path) -> None:
    """Two actors have curves of the same names; each line is sent once, over restarts too."""
    (run / "curves").mkdir()
    for writer, values in (
        ("actor-0", {"actor/episode_return": 3.5}),
        ("actor-1", {"actor/episode_return": 4.5}),
        ("cluster", {"replay/fill": 0.5, "actors/policy_lag": 2.0}),
    ):
        (run / "curves" / f"{writer}.jsonl").write_text(_line(7, env_steps=90, **values))
    assert Follower(run, NAME).send_new() == 3
    with (run / "curves" / "actor-1.jsonl").open("a") as file:
        file.write(_line(8, env_steps=95) + '{"time"')
    assert Follower(run, NAME).send_new() == 1
    assert _sent(run) == [
        {"step": 7, "time": 1.0, "actors/actor-0/env_steps": 90, "actors/actor-0/episode_return": 3.5},
        {"step": 7, "time": 1.0, "actors/actor-1/env_steps": 90, "actors/actor-1/episode_return": 4.5},
        {"step": 7, "time": 1.0, "env_steps": 90, "replay/fill": 0.5, "actors/policy_lag": 2.0},
        {"step": 8, "time": 1.0, "actors/actor-1/env_steps": 95},
    ]


def test_what_could_not_be_sent_is_sent_again(run: Path) -> None:
    """A logger that fails loses nothing, and gets nothing twice."""
    (run / "offline").touch()
    _append(run, _line(665) + _line(666))
    with pytest.raises(OSError, match="no network"):
        Follower(run, NAME).send_new()
    (run / "offline").unlink()
    Follower(run, NAME).send_new()
    assert _steps(run) == [665, 666]


@pytest.mark.parametrize("given", [".", "loggers/.."])
def test_run_that_is_given_from_within_is_sent_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Loggers took its empty name, or `..`, for their id, which all runs sent in this way shared."""
    run = tmp_path / "pong"
    (run / "loggers").mkdir(parents=True)
    (run / "config.yaml").write_text("agent: {gamma: 0.5}\n")
    monkeypatch.chdir(run)
    assert Follower(Path(given), f"{__name__}:Named").id == "pong"


@pytest.mark.parametrize("is_copied", [False, True])
def test_copy_of_a_run_is_sent_as_another_run_and_a_renamed_run_as_the_same(
    tmp_path: Path, is_copied: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the copy learns does not go into the curves of the original."""
    original, other = tmp_path / "a", tmp_path / "b"
    original.mkdir()
    (original / "config.yaml").write_text("agent: {gamma: 0.5}\n")
    _append(original, _line(1))
    Follower(original, NAME).send_new()
    (original / "sent.jsonl").unlink()
    (partial(shutil.copytree, original) if is_copied else original.rename)(other)
    _append(other, _line(2))
    follower = Follower(other, NAME)
    follower.send_new()
    assert (follower.id, _steps(other)) == (("new-b-0.5", [1, 2]) if is_copied else ("new-a-0.5", [2]))
    assert (f"{other} is a copy of {original}; it is sent as another run" in capsys.readouterr().out) == is_copied
    assert Follower(other, NAME).send_new() == 0


@pytest.mark.parametrize("logger", [Named, Unnamed])
def test_renamed_run_and_a_new_one_at_its_path_are_told_apart_if_their_loggers_have_the_same_id(
    tmp_path: Path, logger: type[Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    """The renamed one is continued, as `--fresh` leaves it; its follower does not continue the new one."""
    run, renamed, name = tmp_path / "q", tmp_path / "q-1", f"{__name__}:{logger.__name__}"
    run.mkdir()
    (run / "config.yaml").write_text("agent: {}\n")
    _append(run, _line(1) + _line(2))
    follower = Follower(run, name)
    follower.send_new()
    run.rename(renamed)
    run.mkdir()
    (run / "config.yaml").write_text("agent: {}\n")
    _append(run, _line(3) * 3)
    Follower(run, name)
    with pytest.raises(FailedPrecondition, match="was started again"):
        follower.send_new()
    _append(renamed, _line(4))
    assert Follower(renamed, name).send_new() == 1
    assert (_steps(renamed), _sent(run)) == ([1, 2, 4], [])
    assert "is a copy" not in capsys.readouterr().out


@pytest.mark.parametrize("is_logged", [False, True])
def test_run_that_was_started_again_is_told(run: Path, is_logged: bool) -> None:
    """The position is not one in the records of the new run, whether these are sent by another process or by none."""
    _append(run, _line(1))
    follower = Follower(run, NAME)
    shutil.rmtree(run / "loggers")
    if is_logged:
        (run / "config.yaml").write_text("agent: {gamma: 0.9}\n")
        Follower(run, NAME)
    with pytest.raises(FailedPrecondition, match=naming(f"{run} started again")):
        follower.send_new()
    assert not _sent(run)


def test_run_that_is_started_again_while_it_is_sent_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of positions goes between two looks at it."""
    _append(run, _line(1))
    follower = Follower(run, NAME)
    send = Recorder.log

    def log_and_remove(logger: Recorder, step: int, scalars: Mapping[str, float], time_s: float) -> None:
        send(logger, step, scalars, time_s)
        shutil.rmtree(run / "loggers")

    monkeypatch.setattr(Recorder, "log", log_and_remove)
    with pytest.raises(FailedPrecondition, match="was started again"):
        follower.send_new()


def test_position_outlives_a_disk_that_is_full_for_a_while(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower continues, and the next one has the position that was saved last."""
    _append(run, _line(1))
    follower = Follower(run, NAME)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as filled:
        filled.setattr("tidemill.services.tools.log.write_atomically", Mock(side_effect=full))
        assert follower.send_new() == 1
    _append(run, _line(2))
    assert follower.send_new() == 1
    assert Follower(run, NAME).send_new() == 0
    assert _steps(run) == [1, 2]


def test_folder_that_cannot_be_written_to_is_told(run: Path) -> None:
    """With what it is for: the position is kept there."""
    (run / "loggers").touch()
    with pytest.raises(ConfigError, match=naming(f"cannot write to {run / 'loggers'} position")):
        log([str(run), "--to", NAME])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_second_process_waits_for_the_end_of_the_first(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_stopped: bool
) -> None:
    """Nothing is sent twice; it can be stopped while it waits."""
    _append(run, _line(1))
    first = Follower(run, NAME)
    held = open_locked(run / "loggers" / f"{NAME.replace(':', '.')}.lock")
    assert held is not None
    release = partial(unlock, held)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not is_stopped:
                first.send_new()
                release()
            return is_stopped

    monkeypatch.setattr("tidemill.services.tools.log.stop_event", Stop)
    assert log([str(run), "--to", NAME]) == 0
    printed = capsys.readouterr().out
    assert f"{run} is already being sent to {NAME} by another process" in printed
    assert ("0 points sent" in printed, _steps(run)) == ((False, []) if is_stopped else (True, [1]))
    release()


@pytest.mark.parametrize("options, polls", [([], 1), (["--follow"], 3)])
def test_second_process_ends_with_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], polls: int
) -> None:
    """A launcher does not wait for a logger that waits for another; one that follows waits for the result."""
    (run / "loggers").mkdir()
    held = open_locked(run / "loggers" / f"{NAME.replace(':', '.')}.lock")
    assert held is not None
    waited: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return len(waited) == 3

    monkeypatch.setattr("tidemill.services.tools.log.stop_event", Stop)
    assert log([str(run), "--to", NAME, *options]) == 0
    unlock(held)
    assert len(waited) == polls
    assert (f"{run} has ended; the other process sends the rest" in capsys.readouterr().out) == (not options)


@pytest.mark.parametrize(
    "options, runs, continues", [([], True, True), ([], False, False), (["--follow"], False, True)]
)
def test_logger_hears_whether_the_run_continues(
    run: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], *, runs: bool, continues: bool
) -> None:
    """One that was stopped before it; `--follow` also follows a run without a launcher."""
    heard: list[bool] = []
    monkeypatch.setattr(Recorder, "close", lambda logger: heard.append(logger.run_continues))
    (stop := threading.Event()).set()
    monkeypatch.setattr("tidemill.services.tools.log.stop_event", lambda: stop)
    held = open_locked(run / ".lock") if runs else None
    assert log([str(run), "--to", NAME, *options]) == 0
    if held is not None:
        unlock(held)
    assert heard == [continues]


def test_file_system_without_locks_is_sent_from(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a run's folder on a cluster's file system."""
    _append(run, _line(1))
    monkeypatch.setattr("tidemill.services.tools.log.open_locked", Mock(side_effect=FatalError("no locks")))
    assert log([str(run), "--to", NAME]) == 0
    assert _steps(run) == [1]


def test_place_that_is_corrupt_names_its_file(run: Path) -> None:
    """Nothing is sent twice by guessing."""
    Follower(run, NAME)
    (file,) = (run / "loggers").iterdir()
    file.write_text("{")
    with pytest.raises(DataLoss, match=naming(file.name)):
        Follower(run, NAME)


@pytest.mark.parametrize(
    "name, message",
    [
        ("wandbb", "module:name 'wandb'"),
        ("no_such_module:Logger", "no_such_module"),
        (f"{__name__}:Refuses", "OSError: no account"),
        ("builtins:repr", "tidemill.RunLogger"),
    ],
)
def test_logger_that_cannot_be_made_is_an_error_of_the_settings(name: str, message: str, tmp_path: Path) -> None:
    """With its reason."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_logger(name, LoggedRun("run", tmp_path, {}))


class Refuses(RunLogger):
    """A logger that cannot be made."""

    def __init__(self, run: LoggedRun) -> None:
        """Fail."""
        raise OSError("no account")
