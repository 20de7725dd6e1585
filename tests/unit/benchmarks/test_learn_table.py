"""The table says of each result what its result.json says, and whether that is enough."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.learn.report import write_report
from benchmarks.learn.table import write_table
from tests.unit.benchmarks.run_folders import add_test, make_run


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows of the first table."""
    lines = text.split("\n\n")[-2].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def make_result(tmp_path: Path, name: str, **changes: object) -> None:
    """Write the result of two seeds, then change its document."""
    root, results = tmp_path / "runs", tmp_path / "results"
    make_run(root / name / "seed-1", 1, [(1000, 10.0), (3000, 60.0)], confirmed=52.0)
    make_run(root / name / "seed-2", 2, [(1000, 20.0), (5000, 30.0)])
    for seed, mean in ((1, 58.0), (2, 33.0)):
        add_test(root / name / f"seed-{seed}", 2, mean)
    (root / name / "config.yaml").write_text("")
    (root / name / "plan.json").write_text(json.dumps({"command": f"make {name}"}))
    results.mkdir(exist_ok=True)
    (results / "references.yaml").write_text(f"{name}:\n  published: {{what: somebody, value: 40, source: a table}}\n")
    document = write_report(name, runs_root=root, results_root=results) | changes
    (results / name / "result.json").write_text(json.dumps(document))


def test_row_tells_score_interval_and_verdicts(tmp_path: Path) -> None:
    """The score is met or short of each reference by so much; medians are over the seeds."""
    make_result(tmp_path, "task")
    text = write_table(tmp_path / "results")
    assert rows_of(text) == [
        [
            "[task](task/result.json)",
            "LunarLanderContinuous-v3",
            "sac",
            "2",
            "4,000",
            "45.5 [33.0, 58.0]",
            "45.5 [33.0, 58.0]",
            "target 50: **short by 4.5**; somebody 40: met, +5.5",
            "1 of 2: 3,000 steps, 30 s",
            "40",
        ]
    ]
    assert "| [task](task/curve.png) | `make task` |" in text
    assert (tmp_path / "results" / "README.md").read_text() == text


def test_row_marks_what_is_missing(tmp_path: Path) -> None:
    """Without any finished seed there is no score, and the seeds that did not finish are counted."""
    over = {"score": None, "best_version": None, "confirmed_seeds": 0, "env_steps": None, "wall_s": None}
    make_result(tmp_path, "task", over_seeds=over, seeds=[], unfinished_seeds=[1, 2])
    assert rows_of(write_table(tmp_path / "results"))[0][3:] == ["0 (2 did not finish)", "–", "–", "–", "–", "–", "–"]


def test_peer_has_a_row_below_ours(tmp_path: Path) -> None:
    """It is measured against the same references, and scores that are no fresh episodes are marked."""
    score = {"mean": 30.0, "interval_95": None, "fresh_episodes": False}
    over = {"score": score, "best_version": score, "confirmed_seeds": 0, "env_steps": 100, "wall_s": 7.4}
    peer = {"name": "Stable-Baselines3", "seeds": [1], "unfinished_seeds": [], "over_seeds": over}
    make_result(tmp_path, "other")
    make_result(tmp_path, "task", peer=peer)
    rows = rows_of(write_table(tmp_path / "results"))
    assert [row[0] for row in rows] == [
        "[other](other/result.json)",
        "[task](task/result.json)",
        "Stable-Baselines3 beside it",
    ]
    assert rows[2][3:7] == ["1", "100", "30.0 †", "30.0 †"]
    assert rows[2][7] == "target 50: **short by 20.0**; somebody 40: **short by 10.0**"
