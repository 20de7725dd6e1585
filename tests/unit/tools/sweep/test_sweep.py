"""`tidemill sweep` with runs that end at once: what is run again, and the exit code."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import ANY, MagicMock, Mock, call

import pytest
import yaml

from tests.support.naming import naming
from tests.support.small_run import small_run
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.params.run_end import note_divergence
from tidemill.scores import COLUMNS, Score
from tidemill.services.tools.sweep import command, runs
from tidemill.services.tools.sweep.command import sweep
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.runs import Run, run_folder, score_of, stop

Runs = list[tuple[int, int]]
"""Number of the trial and seed of each run that was started."""


@pytest.fixture(name="swept")
def _swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Runs]]:
    """Return a function that runs a sweep of some trials, in which some runs fail; it returns code and runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_POLL_S", 0.0)
    monkeypatch.setattr(command, "fork_client", lambda _: None)
    monkeypatch.setattr(runs, "check_settings", lambda *_: None)
    Path("base.yaml").write_text(yaml.safe_dump(small_run()))

    def run(
        trials: int,
        seeds: list[int],
        *,
        fails: Callable[[int, int], bool],
        diverges: bool = False,
        ends: bool = False,
        share_replay: bool = False,
        parallel: int = 1,
    ) -> tuple[int, Runs]:
        settings, space = {"run.max_learner_steps": 60}, {"agent.n_step": list(range(1, trials + 1))}
        document = {"base": "base.yaml", "method": "grid", "seeds": seeds, "settings": settings, "space": space}
        Path("sizes.yaml").write_text(yaml.safe_dump(document | {"share_replay": share_replay, "parallel": parallel}))
        started: Runs = []

        def start(folder: Path, trial: Trial, seed: int, slot: int, *_: object) -> Run:
            started.append((trial.number, seed))
            has_failed = fails(trial.number, seed)
            has_result = not has_failed or diverges or ends
            _write_run(run_folder(folder, trial, seed), ends=has_result, diverges=has_failed and diverges)
            poll = Mock(side_effect=chain([None], repeat(int(has_failed))))
            return Run(trial, seed, slot, Mock(poll=poll, returncode=int(has_failed)))

        monkeypatch.setattr(command, "start", start)
        return sweep(["sizes.yaml"]), started

    return run


def _csv(*means: float) -> str:
    """Return the text of a scores.csv, of the versions 0, 1 and so on."""
    lines = [",".join(COLUMNS)]
    for version, mean in enumerate(means):
        score = dataclasses.asdict(Score(1.5, 200, 400, version, 10, mean, 1.0, 11.0, 14.0, 12.0, 50.0))
        lines.append(",".join("" if score[name] is None else str(score[name]) for name in COLUMNS))
    return "\n".join(lines) + "\n"


def _write_run(folder: Path, *, ends: bool, diverges: bool) -> None:
    """Write what a run leaves: an evaluation, the result if it ends with one, and the note if it has diverged."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.csv").write_text(_csv(12.5))
    if ends:
        (folder / "result.json").write_text(json.dumps({"format": 1, "solved": False}))
    if ends and diverges:
        note_divergence(folder, "update 7")


@pytest.mark.parametrize("objective, expected", [("last", 40.0), ("best", 60.0), ("mean", 65.0)])
def test_best_score_is_no_more_than_its_confirmation(tmp_path: Path, objective: str, expected: float) -> None:
    """95 was luck: fresh episodes of that version gave 50."""
    _write_run(tmp_path, ends=True, diverges=False)
    (tmp_path / "scores.csv").write_text(_csv(60.0, 95.0, 40.0))
    (tmp_path / "confirmations.csv").write_text("\n".join(_csv(0.0, 50.0).splitlines()[::2]) + "\n")
    assert score_of(tmp_path, objective) == expected


def test_runs_that_failed_are_run_again(
    swept: Callable[..., tuple[int, Runs]], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same command, as after a missing package was installed; what has a score is not."""
    assert swept(3, [1], fails=lambda *_: True) == (1, [(0, 1), (1, 1), (2, 1)])
    assert "the first 3 runs failed" in capsys.readouterr().err
    assert swept(3, [1], fails=lambda trial, _: trial == 1) == (0, [(0, 1), (1, 1), (2, 1)])
    assert swept(3, [1], fails=lambda *_: False) == (0, [(1, 1)])
    assert swept(3, [1], fails=lambda *_: True) == (0, [])


@pytest.mark.parametrize("trials", [1, 2])
def test_sweep_without_a_score_fails(
    swept: Callable[..., tuple[int, Runs]], capsys: pytest.CaptureFixture[str], trials: int
) -> None:
    """Also if it is too short for three failed runs."""
    assert swept(trials, [1], fails=lambda *_: True)[0] == 1
    assert "no trial has a score" in capsys.readouterr().err


def test_sweep_with_a_success_is_not_ended_by_failures(swept: Callable[..., tuple[int, Runs]]) -> None:
    """A trial has no score once one of its seeds has failed, and the others still have."""
    code, runs = swept(4, [1, 2], fails=lambda trial, seed: trial < 3 and seed == 2)
    assert (code, runs) == (0, [(trial, seed) for trial in range(4) for seed in (1, 2)])


def test_run_that_diverged_stays_failed(
    swept: Callable[..., tuple[int, Runs]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result is that of the versions before; the same settings would end it again."""
    assert swept(2, [1], fails=lambda trial, _: trial == 0, diverges=True) == (0, [(0, 1), (1, 1)])
    capsys.readouterr()
    assert swept(2, [1], fails=lambda *_: False) == (0, [])
    assert "trial 0 of 2, seed 1: failed" in capsys.readouterr().out


def test_run_that_ended_without_its_learner_stays_failed(
    swept: Callable[..., tuple[int, Runs]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result is that of an untrained policy, and it is past its limit; without its folder it is run again."""
    assert swept(2, [1], fails=lambda trial, _: trial == 0, ends=True) == (0, [(0, 1), (1, 1)])
    for _ in range(2):
        capsys.readouterr()
        assert swept(2, [1], fails=lambda *_: False) == (0, [])
        assert "trial 0 of 2, seed 1: failed" in capsys.readouterr().out
    shutil.rmtree(run_folder(Path("sweeps/sizes"), Trial(0, {}), 1))
    assert swept(2, [1], fails=lambda *_: False) == (0, [(0, 1)])
    assert swept(2, [1], fails=lambda *_: False) == (0, [])


def test_runs_of_an_earlier_session_that_diverged_do_not_end_the_next(swept: Callable[..., tuple[int, Runs]]) -> None:
    """Only runs that fail in the same session count."""
    first = [(0, 1), (1, 1), (2, 1)]
    assert swept(5, [1], fails=lambda trial, _: trial < 3, diverges=True) == (1, first)
    assert swept(5, [1], fails=lambda *_: False) == (0, [(3, 1), (4, 1)])


@pytest.fixture(name="shared")
def _shared(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """The replay service of a sweep's runs."""
    shared = MagicMock(arguments=lambda _: [], keeps_items=True)
    shared.__enter__.return_value = shared
    monkeypatch.setattr(command, "SharedReplay", lambda *_: shared)
    return shared


_FIRST, _SECOND = call("trial_0000_seed_1"), call("trial_0001_seed_1")


def test_shared_table_of_a_failed_run_is_kept_until_it_has_ended(
    swept: Callable[..., tuple[int, Runs]], shared: MagicMock
) -> None:
    """It is resumed from its checkpoint, which needs its items."""
    assert swept(2, [1], fails=lambda trial, _: trial == 0, share_replay=True)[0] == 0
    assert shared.empty.call_args_list == [_FIRST, _SECOND, _SECOND]
    assert swept(2, [1], fails=lambda *_: False, share_replay=True) == (0, [(0, 1)])
    assert shared.empty.call_args_list == [_FIRST, _SECOND, _SECOND, _FIRST]


def test_shared_table_of_a_failed_run_is_emptied_if_no_later_session_finds_it(
    swept: Callable[..., tuple[int, Runs]], shared: MagicMock
) -> None:
    """With `replay.storage.memory_only` its items only take memory from the runs that follow."""
    shared.keeps_items = False
    assert swept(2, [1], fails=lambda trial, _: trial == 0, share_replay=True)[0] == 0
    assert shared.empty.call_args_list == [_FIRST, _FIRST, _SECOND, _SECOND]


def test_run_whose_folder_was_deleted_starts_with_an_empty_table(
    swept: Callable[..., tuple[int, Runs]], shared: MagicMock
) -> None:
    """It starts from scratch, and waits until the service has removed the items of the deleted one."""
    swept(1, [1], fails=lambda *_: True, share_replay=True)
    shutil.rmtree(run_folder(Path("sweeps/sizes"), Trial(0, {}), 1))
    shared.empty.reset_mock()
    shared.empty.side_effect = [False, True, True]
    assert swept(1, [1], fails=lambda *_: False, share_replay=True) == (0, [(0, 1)])
    assert shared.empty.call_args_list == [_FIRST] * 3


@pytest.mark.parametrize("start_s, told", [(0.0, 1), (math.inf, 0)])
def test_run_that_waits_for_an_empty_table_says_why_once(
    swept: Callable[..., tuple[int, Runs]],
    shared: MagicMock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    start_s: float,
    told: int,
) -> None:
    """Not while the service may still be starting."""
    monkeypatch.setattr(command, "_START_S", start_s)
    shared.problem = "no space left on device"
    shared.empty.side_effect = [False, False, True, True]
    assert swept(1, [1], fails=lambda *_: False, share_replay=True) == (0, [(0, 1)])
    said = (
        "seed-1 waits for the replay service to empty its table: no space left on device, see sweeps/sizes/replay.log"
    )
    assert capsys.readouterr().out.count(said) == told


def test_shared_table_of_a_run_that_ended_unnoticed_is_emptied_once_the_service_is_there(
    swept: Callable[..., tuple[int, Runs]], shared: MagicMock
) -> None:
    """It is still starting when a sweep is continued whose last run has ended by itself."""
    swept(1, [1], fails=lambda *_: True, share_replay=True)
    _write_run(run_folder(Path("sweeps/sizes"), Trial(0, {}), 1), ends=True, diverges=False)
    shared.empty.reset_mock()
    shared.empty.side_effect = [False, True, True]
    assert swept(1, [1], fails=lambda *_: False, share_replay=True) == (0, [])
    assert shared.empty.call_args_list == [_FIRST] * 3


def test_sweep_each_of_whose_runs_would_be_refused_starts_none(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It leaves no folder, so that the base can be changed. Values that are refused alone fail their own trials."""
    refused = {1, 2}

    def check_settings(config: RunConfig, _: None) -> None:
        if (n_step := getattr(config.agent, "n_step", 0)) in refused:
            raise ConfigError(f"agent.n_step is {n_step}")

    monkeypatch.setattr(runs, "check_settings", check_settings)
    with pytest.raises(ConfigError, match=naming("agent.n_step 1")):
        swept(2, [1], fails=lambda *_: False)
    assert not (tmp_path / "sweeps").exists()
    refused.remove(2)
    assert swept(2, [1], fails=lambda *_: False) == (0, [(0, 1), (1, 1)])
    refused.add(2)  # one that has begun is continued
    assert swept(2, [1], fails=lambda *_: False) == (0, [])


def test_sweep_is_started_for_one_of_its_first_trials(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if those at the ends of its space would be refused; a later trial is not reached after three failures."""
    taken = 2

    def check_settings(config: RunConfig, _: None) -> None:
        if (n_step := getattr(config.agent, "n_step", 0)) != taken:
            raise ConfigError(f"agent.n_step is {n_step}")

    monkeypatch.setattr(runs, "check_settings", check_settings)
    assert swept(3, [1], fails=lambda trial, _: trial != 1) == (0, [(0, 1), (1, 1), (2, 1)])
    shutil.rmtree("sweeps")
    taken = 4
    with pytest.raises(ConfigError, match=naming("agent.n_step 1")):
        swept(4, [1], fails=lambda *_: False)


@pytest.mark.parametrize("parallel, reached", [(1, 3), (2, 2), (3, 1)])
def test_sweep_is_refused_for_the_trials_that_its_first_three_runs_are_of(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch, parallel: int, reached: int
) -> None:
    """Simultaneous runs are of several seeds of a trial; three that fail end a sweep before it tries other values."""
    refused: set[int] = set()

    def check_settings(config: RunConfig, _: None) -> None:
        if (n_step := getattr(config.agent, "n_step", 0)) in refused:
            raise ConfigError(f"agent.n_step is {n_step}")

    monkeypatch.setattr(runs, "check_settings", check_settings)
    code, started = swept(4, [1, 2, 3], fails=lambda trial, _: trial < reached, parallel=parallel)
    assert (code, {trial for trial, _ in started[:3]}) == (1, set(range(reached)))
    shutil.rmtree("sweeps")
    refused |= set(range(1, reached + 1))
    with pytest.raises(ConfigError, match=naming("agent.n_step 1")):
        swept(4, [1, 2, 3], fails=lambda *_: False, parallel=parallel)
    refused.remove(reached)
    assert swept(4, [1, 2, 3], fails=lambda trial, _: trial < reached - 1, parallel=parallel)[0] == 0


def test_folder_that_cannot_be_written_to_is_told(swept: Callable[..., tuple[int, Runs]]) -> None:
    """With the option that chooses another."""
    Path("sweeps").touch()
    with pytest.raises(ConfigError, match=naming("cannot write to sweeps/sizes --out")):
        swept(1, [1], fails=lambda *_: False)


def test_runs_of_a_stopped_sweep_have_the_time_that_their_launchers_give_to_four_groups_of_services(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is told if one was killed all the same."""
    Path("base.yaml").write_text(yaml.safe_dump(small_run(launcher={"stop_timeout_s": 120.0})))
    event = Mock(is_set=Mock(side_effect=chain([False], repeat(True))))
    stopped = Mock(side_effect=lambda runs, _: runs)
    monkeypatch.setattr(command, "stop_event", lambda: event)
    monkeypatch.setattr(command, "stop", stopped)
    assert swept(1, [1], fails=lambda *_: False) == (0, [(0, 1)])
    assert stopped.call_args.args[1] == 4 * 120.0
    assert "trial-0000/seed-1 did not end in time and was killed" in capsys.readouterr().out


def test_stopped_sweep_stops_a_run_whose_settings_are_wrong(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values that are each allowed may not go together; the run has not ended yet because of it."""
    stopped = Mock(return_value=[])
    monkeypatch.setattr(command, "stop_event", lambda: Mock(is_set=Mock(side_effect=chain([False], repeat(True)))))
    monkeypatch.setattr(command, "stop", stopped)
    monkeypatch.setattr(command, "propose", lambda *_: {"table.min_size": 5000, "table.max_items": 1000})
    assert swept(1, [1], fails=lambda *_: True) == (0, [(0, 1)])
    (run,), services_s = stopped.call_args.args
    assert (run.trial.number, services_s) == (0, 0.0)
    assert "stopped; the same command continues it" in capsys.readouterr().out


def test_run_that_does_not_end_in_time_is_killed() -> None:
    """Those that were killed are returned."""
    in_time = Mock()
    late = Mock(wait=Mock(side_effect=[subprocess.TimeoutExpired("train", 540.0), 0]))
    runs = [Run(Trial(0, {}), seed, seed, process) for seed, process in enumerate((in_time, late))]
    assert stop(runs, 480.0) == runs[1:]
    assert late.mock_calls == [call.terminate(), call.wait(ANY), call.kill(), call.wait()]
    assert in_time.mock_calls == [call.terminate(), call.wait(ANY)]
