"""A result is what the folders of its runs say, and nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.learn.committed import read_committed
from benchmarks.learn.curve import CURVE_COLUMNS
from benchmarks.learn.ran import versions_to_test
from benchmarks.learn.report import Document, write_report
from tests.support.naming import naming
from tests.unit.benchmarks.run_folders import COMMIT, add_test, make_run, store_params
from tidemill.errors import NotFound


@pytest.fixture(name="roots")
def fixture_roots(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of runs and results: two seeds that ended, one of them solved, and one that did not end."""
    runs, results = tmp_path / "runs", tmp_path / "results"
    root = runs / "task"
    make_run(root / "seed-1", 1, [(1000, 10.0), (2000, 60.0), (3000, 55.0)], confirmed=52.0)
    make_run(root / "seed-2", 2, [(1000, 20.0), (4000, 40.0), (5000, 30.0)])
    make_run(root / "seed-3", 3, [(1000, 90.0)], ended=False)
    make_run(root / "seed-1-1", 1, [(1000, -1000.0)])  # an earlier run, moved aside
    (root / "config.yaml").write_text("# as run\n")
    (root / "plan.json").write_text(json.dumps({"command": "python -m benchmarks.learn configs/task.yaml"}))
    results.mkdir()
    (results / "references.yaml").write_text(
        "task:\n"
        "  threshold: {what: usual threshold, value: 50, source: registry}\n"
        "  published: {what: somebody, value: 70, source: a table, env_steps: 5_000}\n"
    )
    return runs, results


def report(roots: tuple[Path, Path]) -> Document:
    """Write the report of the task; return its result.json as read back."""
    write_report("task", runs_root=roots[0], results_root=roots[1])
    document: Document = json.loads((roots[1] / "task" / "result.json").read_text())
    return document


def test_result_tells_each_seed(roots: tuple[Path, Path]) -> None:
    """Crossing, confirmation, last and best evaluation are those of the run's files."""
    first, second, third = report(roots)["runs"]
    assert first["first_reached"] == {"mean": 60.0, "episodes": 20, "env_steps": 2000, "std": 2.0, "first_seed": None}
    assert first["first_reached_s"] == 20.0
    assert (first["confirmed"]["mean"], first["confirmed"]["episodes"]) == (52.0, 50)
    assert (first["confirmed"]["env_steps"], first["confirmed_s"]) == (3000, 30.0)
    assert (first["final"]["mean"], first["best"]["mean"], first["evaluations"]) == (55.0, 60.0, 3)
    assert (second["first_reached"], second["confirmed"], second["confirmed_s"]) == (None, None, None)
    assert (second["env_steps"], second["learner_steps"], second["wall_s"]) == (5000, 1250, 50.0)
    assert (third["is_finished"], third["best"]["mean"]) == (False, 90.0)


def test_result_over_seeds_leaves_out_what_did_not_finish(roots: tuple[Path, Path]) -> None:
    """The unfinished seed is named, and no mean has it in it."""
    document = report(roots)
    assert (document["seeds"], document["unfinished_seeds"]) == ([1, 2], [3])
    over = document["over_seeds"]
    assert over["deciding_version"]["mean"] == 42.5  # of 55 and 30
    assert over["deciding_version"]["interquartile_mean"] == 42.5
    assert over["deciding_version"]["interval_95"] == [30.0, 55.0]
    assert (over["deciding_version"]["seeds"], over["deciding_version"]["fresh_episodes"]) == (2, False)
    assert over["best_version"]["mean"] == 50.0  # of 60 and 40
    assert (over["confirmed_seeds"], over["env_steps_to_confirmed"], over["wall_s_to_confirmed"]) == (1, 3000, 30.0)
    assert over["env_steps"] == 4000


def test_result_has_what_training_ended_with_once_every_seed_does(roots: tuple[Path, Path]) -> None:
    """A seed that ended at a step was measured there; of one that passed its target, the learner's tag says where."""
    root = roots[0] / "task"
    make_run(root / "seed-4", 4, [(1000, 20.0), (5000, 30.0)], reason="run.max_env_steps (5,000) reached")
    add_test(root / "seed-4", 2, 31.0)
    assert report(roots)["over_seeds"]["last_version"] is None
    for seed, mean in ((1, -12.5), (2, 25.5)):
        store_params(root / f"seed-{seed}", last_trained=7)
        assert 7 in versions_to_test(root / f"seed-{seed}")
        add_test(root / f"seed-{seed}", 7, mean)
    document = report(roots)
    last = document["over_seeds"]["last_version"]
    assert (last["seeds"], last["fresh_episodes"]) == (3, True)
    assert last["mean"] == pytest.approx((-12.5 + 25.5 + 31.0) / 3)
    assert document["over_seeds"]["learner_steps"] == 1250


def test_result_counts_fresh_episodes_once_every_seed_has_them(roots: tuple[Path, Path]) -> None:
    """Tests replace the evaluations that picked a version, but never for some seeds only."""
    root = roots[0] / "task"
    add_test(root / "seed-1", 3, 51.0, episodes=10)
    add_test(root / "seed-1", 3, 50.0)
    assert report(roots)["over_seeds"]["deciding_version"]["mean"] == 42.5
    add_test(root / "seed-2", 3, 20.0)
    score = report(roots)["over_seeds"]["deciding_version"]
    assert (score["mean"], score["episodes_per_seed"], score["fresh_episodes"]) == (35.0, 100, True)


def test_result_names_references_command_and_commit(roots: tuple[Path, Path]) -> None:
    """What it is compared with comes with its source; how it was made comes from beside the runs."""
    document = report(roots)
    published = {"what": "somebody", "value": 70.0, "source": "a table", "env_steps": 5000, "learner_steps": None}
    assert document["references"]["published"] == published
    assert (document["network"], document["budget"]["target_return"]) == ("256, 256", 50.0)
    assert document["command"] == "python -m benchmarks.learn configs/task.yaml"
    assert (document["commit"], document["machine"]) == (COMMIT, {"cores": 2})
    assert (roots[1] / "task" / "config.yaml").read_text() == "# as run\n"


def test_curve_has_a_row_for_every_evaluation(roots: tuple[Path, Path]) -> None:
    """Seeds that did not finish are in it too; runs that were moved aside are not."""
    report(roots)
    with (roots[1] / "task" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CURVE_COLUMNS
    assert [row["seed"] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"]
    assert (rows[1]["env_steps"], rows[1]["mean"], rows[1]["episodes"]) == ("2000", "60.0", "20")


def test_report_made_again_is_the_same_to_the_byte(roots: tuple[Path, Path]) -> None:
    """Tables, result and picture depend on the runs alone, and no draft is left."""
    report(roots)
    files = sorted((roots[1] / "task").iterdir())
    assert [file.name for file in files] == ["config.yaml", "curve.csv", "curve.png", "result.json"]
    before = [file.read_bytes() for file in files]
    report(roots)
    assert [file.read_bytes() for file in files] == before


def test_peer_stands_beside_ours(roots: tuple[Path, Path]) -> None:
    """Its runs give the same figures in a separate part, with what it was."""
    folder = roots[0] / "task" / "sb3-seed-1"
    make_run(folder, 1, [(1000, 5.0), (2000, 45.0)])
    result = json.loads((folder / "result.json").read_text()) | {"hyperparameters": {"gamma": 0.9}, "source": "zoo"}
    (folder / "result.json").write_text(json.dumps(result))
    document = report(roots)
    peer = document["peer"]
    assert (peer["hyperparameters"], peer["source"], peer["seeds"]) == ({"gamma": 0.9}, "zoo", [1])
    assert peer["over_seeds"]["deciding_version"]["mean"] == 45.0
    assert peer["over_seeds"]["deciding_version"]["interval_95"] is None  # one seed says nothing about others
    assert document["over_seeds"]["deciding_version"]["mean"] == 42.5
    assert (roots[1] / "task" / "peer_curve.csv").read_text().count("\n") == 3


def test_report_without_runs_is_refused(tmp_path: Path) -> None:
    """There is nothing to report, and the message names where it looked."""
    with pytest.raises(NotFound, match=naming("task seeds 4")):
        write_report("task", [4], runs_root=tmp_path, results_root=tmp_path)


def test_untimed_report_has_no_seconds_and_can_grow(roots: tuple[Path, Path]) -> None:
    """Scores may be taken beside other work, times may not; curve.csv still reads back."""
    document = write_report("task", runs_root=roots[0], results_root=roots[1], timed=False)
    over = document["over_seeds"]
    assert (over["wall_s"], over["wall_s_to_confirmed"]) == (None, None)
    assert {run[name] for run in document["runs"] for name in ("wall_s", "first_reached_s", "confirmed_s")} == {None}
    with (roots[1] / "task" / "curve.csv").open() as file:
        assert {row["wall_s"] for row in csv.DictReader(file)} == {"nan"}
    assert over["env_steps"] == report(roots)["over_seeds"]["env_steps"]
    text = (roots[1] / "task" / "config.yaml").read_text()
    write_report("task", runs_root=roots[0], results_root=roots[1], timed=False)
    assert [ran.wall_s for ran in read_committed(roots[1] / "task", text, [1])] == [None]
