"""The table says of each result what its result.json says, which version that is of, and whether it is enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learn.report import write_report
from benchmarks.learn.table import write_table
from tests.unit.benchmarks.run_folders import add_test, make_run

_AT_LIMIT = "run.max_env_steps (5,000) reached"
_NAMES = "result env algorithm network seeds budget steps updates measured return last best compared target wall"
_COLUMNS = _NAMES.split(" ")


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the cells of the rows of the table of all results, by column."""
    lines = text.split("\n\n")[-2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(_COLUMNS, row, strict=True)) for row in cells]


def first_of(text: str) -> list[list[str]]:
    """Return the cells of the rows that stand first."""
    table = next(part for part in text.split("\n\n") if part.startswith("| Task | Result | Decisions"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def make_result(tmp_path: Path, name: str, *, reason: str = "for a test", entry: str = "", **changes: object) -> None:
    """Write the result of two seeds, then change its document."""
    root, results = tmp_path / "runs", tmp_path / "results"
    make_run(root / name / "seed-1", 1, [(1000, 10.0), (3000, 60.0)], confirmed=52.0, reason=reason)
    make_run(root / name / "seed-2", 2, [(1000, 20.0), (5000, 30.0)], reason=reason)
    for seed, mean in ((1, 58.0), (2, 33.0)):
        add_test(root / name / f"seed-{seed}", 2, mean)
    (root / name / "config.yaml").write_text("")
    (root / name / "plan.json").write_text(json.dumps({"command": f"make {name}"}))
    results.mkdir(exist_ok=True)
    published = entry or "{what: somebody, value: 40, source: a table, env_steps: 4000}"
    (results / "references.yaml").write_text(f"{name}:\n  published: {published}\n")
    document = write_report(name, runs_root=root, results_root=results) | changes
    (results / name / "result.json").write_text(json.dumps(document))


def peer_of(mean: float, env_steps: int, interval: tuple[float, float] | None = None) -> dict[str, Any]:
    """Return a peer of one seed, as a result.json has it."""
    score = {"mean": mean, "interval_95": interval, "fresh_episodes": False}
    over = {
        "deciding_version": score,
        "last_version": score,
        "best_version": score | {"mean": 80.0},
        "confirmed_seeds": 0,
        "env_steps": env_steps,
        "learner_steps": 700,
        "wall_s": 7.4,
    }
    runs = [{"reason": "all its decisions were made", "is_finished": True}]
    seeds = {"seeds": [1], "unfinished_seeds": [], "runs": runs}
    return {"name": "Stable-Baselines3", "network": "256, 256", **seeds, "over_seeds": over}


def test_row_tells_budget_return_and_verdicts(tmp_path: Path) -> None:
    """The return is above or below each reference if its interval is; medians are over the seeds."""
    make_result(tmp_path, "task")
    text = write_table(tmp_path / "results")
    assert rows_of(text) == [
        {
            "result": "[task](task/result.json)",
            "env": "LunarLanderContinuous-v3",
            "algorithm": "sac",
            "network": "256, 256",
            "seeds": "2 seen",
            "budget": "to 50",
            "steps": "4,000",
            "updates": "1,000",
            "measured": "1 passed, others last evaluated",
            "return": "45.5 [33.0, 58.0]",
            "last": "not recorded",
            "best": "45.5 [33.0, 58.0]",
            "compared": "target 50: no difference shown, -4.5; somebody 40 after 4,000: no difference shown, +5.5",
            "target": "1 of 2: 3,000 steps, 30 s",
            "wall": "40",
        }
    ]
    assert "| [task](task/curve.png) | `make task` |" in text
    assert (tmp_path / "results" / "README.md").read_text() == text


@pytest.mark.parametrize("budget", ["", ", env_steps: 10000", ", learner_steps: 4000", ", env_steps: 4050"])
def test_other_budget_gets_no_verdict(budget: str, tmp_path: Path) -> None:
    """Neither a figure of more or fewer steps nor one whose steps are not known is met or missed."""
    make_result(tmp_path, "task", entry=f"{{what: somebody, value: 40, source: a table{budget}}}")
    said = rows_of(write_table(tmp_path / "results"))[0]["compared"].split("; ")[1]
    assert said.startswith("somebody 40")
    assert said.endswith("not comparable: budgets differ")


def test_version_that_passed_is_named_and_the_true_last_stands_beside_it(tmp_path: Path) -> None:
    """Training continued after it: its end has another column. A target that ended the runs is not a verdict."""
    make_result(tmp_path, "task")
    file = tmp_path / "results" / "task" / "result.json"
    document = json.loads(file.read_text())
    over = document["over_seeds"]
    over["confirmed_seeds"], over["last_version"] = 2, over["deciding_version"] | {"mean": -12.5, "interval_95": None}
    file.write_text(json.dumps(document))
    row = rows_of(write_table(tmp_path / "results"))[0]
    assert (row["measured"], row["return"], row["last"]) == ("passed", "45.5 [33.0, 58.0]", "-12.5")
    assert row["compared"].startswith("target 50: reached when each run stopped;")


def test_run_that_ended_at_a_step_was_measured_where_it_ended(tmp_path: Path) -> None:
    """Its last evaluation is of what training ended with."""
    make_result(tmp_path, "task", reason=_AT_LIMIT)
    row = rows_of(write_table(tmp_path / "results"))[0]
    assert (row["measured"], row["last"]) == ("last", "the same")


def test_row_marks_what_is_missing(tmp_path: Path) -> None:
    """Without any finished seed there is no return, and the seeds that did not finish are counted."""
    nothing = dict.fromkeys(
        ("deciding_version", "last_version", "best_version", "env_steps", "learner_steps", "wall_s")
    )
    over = {"confirmed_seeds": 0, **nothing}
    make_result(tmp_path, "task", over_seeds=over, seeds=[], unfinished_seeds=[1, 2])
    row = rows_of(write_table(tmp_path / "results"))[0]
    assert row["seeds"] == "0 (2 did not finish) seen"
    assert {row[each] for each in _COLUMNS[6:]} == {"–"}


def test_result_of_one_budget_with_another_stands_first(tmp_path: Path) -> None:
    """Ours and the peer are compared by what each ended with, and with what was published."""
    make_result(tmp_path, "task", reason=_AT_LIMIT, peer=peer_of(60.0, 4000), env_id="Some-v0")
    text = write_table(tmp_path / "results")
    [row] = first_of(text)
    assert row[:4] == ["Some-v0", "[task](task/curve.png)", "4,000", "2"]
    assert row[5:7] == ["Stable-Baselines3: 60.0 †", "somebody: 40"]
    assert row[7].split("; ") == ["no verdict of one seed, -14.5", "no difference shown, +5.5"]
    assert text.index("somebody: 40") < text.index("## All results")


def test_result_whose_seeds_all_reached_the_target_is_solved(tmp_path: Path) -> None:
    """Its row says what that took, and on which machine."""
    make_result(tmp_path, "task")
    file = tmp_path / "results" / "task" / "result.json"
    document = json.loads(file.read_text())
    document["over_seeds"] |= {"confirmed_seeds": 2, "env_steps_to_confirmed": 4000, "wall_s_to_confirmed": None}
    document["machine"] |= {"cores": 16, "gpu": "a GPU"}
    file.write_text(json.dumps(document))
    text = write_table(tmp_path / "results")
    assert f"| {document['env_id']} | [task](task/curve.png) | 50 | 2 | 4,000 | – | 16 cores, a GPU |" in text
    document["machine"] = [document["machine"], document["machine"] | {"torch": "another"}, {"cores": 2}, None]
    file.write_text(json.dumps(document))
    assert "| 4,000 | – | 16 cores, a GPU; 2 cores; – |" in write_table(tmp_path / "results")


@pytest.mark.parametrize(
    "algorithm, env_id, steps, said",
    [
        ("sac", "Some-v0", 9_000, "budgets differ"),
        ("sac", "LunarLanderContinuous-v3", 4_000, "its settings are for 500,000 steps"),
    ],
)
def test_pair_of_two_budgets_is_not_compared(
    algorithm: str, env_id: str, steps: int, said: str, tmp_path: Path
) -> None:
    """It is in the table of all results alone, where its row says why; so is one whose settings are of a longer run."""
    peer = peer_of(30.0, steps)
    entry = "{what: somebody, value: 40, source: a table}"
    make_result(tmp_path, "task", reason=_AT_LIMIT, peer=peer, algorithm=algorithm, env_id=env_id, entry=entry)
    text = write_table(tmp_path / "results")
    assert first_of(text) == []
    ours, theirs = rows_of(text)
    assert ours["compared"].endswith(f"Stable-Baselines3 beside it: not comparable: {said}")
    assert (theirs["result"], theirs["measured"], theirs["return"]) == ("Stable-Baselines3 beside it", "last", "30.0 †")


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5"])
def test_settings_in_which_nothing_falls_over_the_run_are_compared_at_any_length(env_id: str, tmp_path: Path) -> None:
    """The zoo trains a million decisions with them; the first thousands of those are like those of a short run."""
    make_result(tmp_path, "task", reason=_AT_LIMIT, peer=peer_of(60.0, 4000), env_id=env_id)
    [row] = first_of(write_table(tmp_path / "results"))
    assert row[-1].startswith("no verdict of one seed, -14.5;")


@pytest.mark.parametrize(
    "mean, interval, said",
    [
        (21.0, (10.0, 32.0), "above, +24.5"),
        (21.0, (10.0, 33.0), "no difference shown, +24.5"),
        (70.0, (58.0, 90.0), "no difference shown, -24.5"),
        (70.0, (58.5, 90.0), "**below, -24.5**"),
        (70.0, None, "no verdict of one seed, -24.5"),
    ],
)
def test_verdict_is_of_intervals_that_do_not_overlap(
    mean: float, interval: tuple[float, float] | None, said: str, tmp_path: Path
) -> None:
    """Ours is 45.5 [33, 58]; the sign of the difference decides nothing."""
    make_result(tmp_path, "task", reason=_AT_LIMIT, env_id="Some-v0", peer=peer_of(mean, 4000, interval))
    [row] = first_of(write_table(tmp_path / "results"))
    assert row[-1].split("; ")[0] == said


def test_seeds_are_seen_unless_something_else_is_known(tmp_path: Path) -> None:
    """What is written down of an old result stands in its row; declared seeds need no word of anybody."""
    make_result(tmp_path, "declared", declared_seeds=True)
    make_result(tmp_path, "grown")
    make_result(tmp_path, "new")
    file = tmp_path / "results" / "seeds.yaml"
    file.write_text("grown: {number: extended from 1, source: a log}\nnew: {seen: false, source: a log}\n")
    rows = rows_of(write_table(tmp_path / "results"))
    assert [row["seeds"] for row in rows] == ["2 unseen, fixed before", "2 seen, extended from 1", "2 unseen"]
