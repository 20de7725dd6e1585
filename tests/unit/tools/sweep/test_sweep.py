"""`tidemill sweep` with runs that end at once: what is run again, and the exit code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import MagicMock, Mock, call

import pytest
import yaml

from tests.support.small_run import small_run
from tidemill.params.run_end import note_divergence
from tidemill.scores import COLUMNS, Score
from tidemill.services.tools.sweep import command
from tidemill.services.tools.sweep.command import sweep
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.runs import Run, run_folder

Runs = list[tuple[int, int]]
"""Number of the trial and seed of each run that was started."""


@pytest.fixture(name="swept")
def _swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Runs]]:
    """Return a function that runs a sweep of some trials, in which some runs fail; it returns code and runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_POLL_S", 0.0)
    monkeypatch.setattr(command, "fork_client", lambda _: None)
    Path("base.yaml").write_text(yaml.safe_dump(small_run()))

    def run(
        trials: int,
        seeds: list[int],
        *,
        fails: Callable[[int, int], bool],
        diverges: bool = False,
        share_replay: bool = False,
    ) -> tuple[int, Runs]:
        settings, space = {"run.max_learner_steps": 60}, {"agent.n_step": list(range(1, trials + 1))}
        document = {"base": "base.yaml", "method": "grid", "seeds": seeds, "settings": settings, "space": space}
        Path("sizes.yaml").write_text(yaml.safe_dump(document | {"share_replay": share_replay}))
        started: Runs = []

        def start(folder: Path, trial: Trial, seed: int, slot: int, *_: object) -> Run:
            started.append((trial.number, seed))
            has_failed = fails(trial.number, seed)
            _write_run(run_folder(folder, trial, seed), ends=not has_failed or diverges, diverges=has_failed)
            poll = Mock(side_effect=chain([None], repeat(int(has_failed))))
            return Run(trial, seed, slot, Mock(poll=poll, returncode=int(has_failed)))

        monkeypatch.setattr(command, "start", start)
        return sweep(["sizes.yaml"]), started

    return run


def _write_run(folder: Path, *, ends: bool, diverges: bool) -> None:
    """Write what a run leaves: an evaluation, the result if it ends with one, and the note if it has diverged."""
    folder.mkdir(parents=True, exist_ok=True)
    score = dataclasses.asdict(Score(1.5, 200, 400, 3, 10, 12.5, 1.0, 11.0, 14.0, 12.0, 50.0))
    row = ",".join("" if score[name] is None else str(score[name]) for name in COLUMNS)
    (folder / "scores.csv").write_text(",".join(COLUMNS) + f"\n{row}\n")
    if ends:
        (folder / "result.json").write_text(json.dumps({"format": 1, "solved": False}))
    if ends and diverges:
        note_divergence(folder, "update 7")


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


def test_runs_of_an_earlier_session_that_diverged_do_not_end_the_next(swept: Callable[..., tuple[int, Runs]]) -> None:
    """Only runs that fail in the same session count."""
    first = [(0, 1), (1, 1), (2, 1)]
    assert swept(5, [1], fails=lambda trial, _: trial < 3, diverges=True) == (1, first)
    assert swept(5, [1], fails=lambda *_: False) == (0, [(3, 1), (4, 1)])


def test_shared_table_of_a_failed_run_is_kept_until_it_has_ended(
    swept: Callable[..., tuple[int, Runs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resumed from its checkpoint, which needs its items."""
    shared = MagicMock(arguments=lambda _: [])
    shared.__enter__.return_value = shared
    monkeypatch.setattr(command, "SharedReplay", lambda *_: shared)
    assert swept(2, [1], fails=lambda trial, _: trial == 0, share_replay=True)[0] == 0
    assert shared.empty.call_args_list == [call("trial_0001_seed_1")]
    assert swept(2, [1], fails=lambda *_: False, share_replay=True) == (0, [(0, 1)])
    assert shared.empty.call_args_list == [call("trial_0001_seed_1"), call("trial_0000_seed_1")]
