"""The journal of a sweep, and what is made of it: proposals, ranks, tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.extras import needs_extra, run_with_extras
from tests.support.naming import naming
from tidemill.errors import DataLoss
from tidemill.services.tools.sweep.journal import Journal, Trial
from tidemill.services.tools.sweep.plan import Sweep, SweepSettings
from tidemill.services.tools.sweep.propose import propose
from tidemill.services.tools.sweep.report import draw_results, ranked, table, write_results
from tidemill.services.tools.sweep.space import parse_space

_SPACE = parse_space({"agent.gamma": {"uniform": [0.0, 1.0]}, "agent.hidden_sizes": [[16], [32, 32]]})


def _sweep(**settings: object) -> Sweep:
    return Sweep(SweepSettings(base="x", **settings), _SPACE, {}, {})  # type: ignore[arg-type]


def _trial(number: int, *scores: float | None, gamma: float = 0.5) -> Trial:
    values = {"agent.gamma": gamma, "agent.hidden_sizes": [16]}
    return Trial(number, values, {seed: score for seed, score in enumerate(scores, start=1)})


def test_journal_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """A line whose writing was cut is as if it had never been begun."""
    file = tmp_path / "trials.jsonl"
    journal = Journal(file)
    first = journal.begin({"agent.gamma": 0.25})
    journal.end(first, 1, 10.0)
    journal.end(first, 2, 20.0)
    second = journal.begin({"agent.gamma": 0.75})
    journal.end(second, 1, None)
    with file.open("a") as cut:
        cut.write('{"trial": 2, "val')
    again = Journal(file)
    assert again.trials == [first, second]
    assert (again.trials[0].score, again.trials[1].score, again.trials[1].has_failed) == (15.0, None, True)
    again.forget_failures()
    assert (again.trials[0].scores, again.trials[1].scores) == ({1: 10.0, 2: 20.0}, {})
    assert again.begin({"agent.gamma": 1.0}).number == 2


@pytest.mark.parametrize(
    "line", ["nothing", "[]", '"format"', '{"trial": 3, "values": {}}', '{"trial": 0, "seed": 1, "score": 2}']
)
def test_journal_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    """The file and the line are named."""
    file = tmp_path / "trials.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataLoss, match=naming("trials.jsonl 1")):
        Journal(file)
    assert file.read_text() == line + "\n"


def test_journal_of_the_first_releases_is_continued_and_gets_the_number_of_its_format(tmp_path: Path) -> None:
    """Its trials are read; what comes next follows the number."""
    file = tmp_path / "trials.jsonl"
    old = '{"trial": 0, "values": {"a.b": 1}}\n{"trial": 0, "seed": 1, "score": 2.5}\n'
    file.write_text(old)
    journal = Journal(file)
    assert [trial.score for trial in journal.trials] == [2.5]
    journal.begin({"a.b": 2})
    assert file.read_text() == old + '{"format": 1}\n{"trial": 1, "values": {"a.b": 2}}\n'
    assert Journal(file).trials == journal.trials


def test_random_proposals_do_not_depend_on_scores() -> None:
    """A sweep that was stopped proposes what it would have."""
    sweep = _sweep(method="random", seed=7)
    assert propose(sweep, [_trial(0, 1.0)]) == propose(sweep, [_trial(0)])
    assert propose(sweep, []) != propose(sweep, [_trial(0)])


@needs_extra()
def test_optuna_proposes_near_the_best(tmp_path: Path) -> None:
    """After thirty trials that score best at gamma 0.8, of two choices the second, most proposals are there."""
    script = tmp_path / "ask.py"
    script.write_text(_ASK)
    answer = run_with_extras(str(script))
    assert answer.returncode == 0, answer.stderr
    asked = [line.split() for line in answer.stdout.splitlines()]
    assert len(asked) == 40
    last = asked[-20:]
    assert sum(abs(float(gamma) - 0.8) < 0.2 for gamma, _ in last) >= 12  # 40 % of the range: 8 of 20 by chance
    assert sum(choice == "[32,32]" for _, choice in last) >= 12


_ASK = """
from tests.unit.tools.sweep.test_journal import _SPACE, _sweep
from tidemill.services.tools.sweep.journal import Trial
from tidemill.services.tools.sweep.propose import propose

sweep, trials = _sweep(method="tpe", seed=1), []
for number in range(40):
    values = propose(sweep, trials)
    score = -abs(values["agent.gamma"] - 0.8) + 0.3 * (len(values["agent.hidden_sizes"]) == 2)
    trials.append(Trial(number, values, {1: score} if number % 7 else {1: None}))
    print(values["agent.gamma"], str(values["agent.hidden_sizes"]).replace(" ", ""))
"""


def test_trials_are_ranked_by_the_mean_of_their_seeds() -> None:
    """One that failed has no rank."""
    trials = [_trial(0, 1.0, 3.0), _trial(1, 5.0, None), _trial(2, 4.0), _trial(3, 2.0, 2.0)]
    assert [trial.number for trial in ranked(trials)] == [2, 0, 3]


def test_results_have_every_trial_and_the_table_the_best(tmp_path: Path) -> None:
    """Also those that failed or are under way; the picture is one."""
    sweep = _sweep(seeds=(1, 2))
    trials = [_trial(0, 1.0, 3.0), _trial(1, 5.0, None), _trial(2), *(_trial(n, float(n), 0.0) for n in range(3, 20))]
    write_results(sweep, trials, tmp_path / "results.csv")
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert len(rows) == 20
    assert [(row["trial"], row["state"], row["score"]) for row in rows[-2:]] == [
        ("1", "failed", ""),
        ("2", "begun", ""),
    ]
    assert (rows[0]["trial"], rows[0]["seed_1"], rows[0]["agent.hidden_sizes"]) == ("19", "19.0", "[16]")
    lines = table(sweep, trials)
    assert len(lines) == 11
    assert lines[1].split() == ["19", "9.5", "19", "0", "0.5", "[16]"]
    draw_results(sweep, trials, tmp_path / "results.png")
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
