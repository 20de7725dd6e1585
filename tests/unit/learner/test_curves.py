"""The learner's metrics as files: points of bounded number for TensorBoard, lines of JSON that survive being cut."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.support.event_files import scalars
from tidemill.curves import MetricsFile
from tidemill.services.learner.curves import LearnerCurves, ScalarWriter
from tidemill.tensorboard_writer import TensorboardWriter


def test_learners_curves_have_bounded_points_and_the_last_one(tmp_path: Path) -> None:
    """A point every 2 s of the clock, the first at once, and what was read last when the file is closed."""
    now = 0.0
    curves = LearnerCurves(TensorboardWriter(tmp_path), 2.0, lambda: now)
    for step in range(1, 6):  # one reading per second
        curves.on_update(step, {"loss": step / 2, "grad_norm": 1.0})
        now += 1.0
    curves.on_update(6, {"loss": 3.0})
    curves.close()
    assert scalars(tmp_path, "learner/loss") == [(1, 0.5), (3, 1.5), (5, 2.5), (6, 3.0)]
    assert [step for step, _ in scalars(tmp_path, "learner/grad_norm")] == [1, 3, 5]


def test_points_that_a_disk_refuses_are_dropped_and_the_curves_continue(tmp_path: Path) -> None:
    """The thread of callbacks gives up a callback that raises: the learner would have no curves until it restarts."""
    run, now = tmp_path / "run", 0.0
    writers: tuple[ScalarWriter, ...] = (TensorboardWriter(run), MetricsFile(run / "metrics.jsonl"))
    made = [LearnerCurves(writer, 1.0, lambda: now) for writer in writers]
    run.touch()  # no folder
    for curves in made:
        curves.on_update(1, {"loss": 1.0})
    run.unlink()
    now = 10.0
    for curves in made:
        curves.on_update(2, {"loss": 2.0})
        curves.close()
    assert scalars(run, "learner/loss") == [(2, 2.0)]
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [2]


def test_metrics_file_is_continued_after_a_line_that_was_cut(tmp_path: Path) -> None:
    """A process that was killed while writing leaves no line that is none."""
    file = tmp_path / "new" / "metrics.jsonl"
    first = MetricsFile(file)
    first.write({"learner/loss": 0.5}, 10)
    with file.open("a") as cut:
        cut.write('{"time": 1.0, "st')
    second = MetricsFile(file)
    second.write({"learner/loss": math.nan, "learner/q": 1.0}, 20)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["step"], line["learner/loss"]) for line in lines] == [(10, 0.5), (20, None)]
    assert lines[1]["learner/q"] == 1.0
    assert lines[1]["time"] >= lines[0]["time"] > 1.6e9
