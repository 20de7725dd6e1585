"""Progress of a run in one line: on a terminal, in a notebook, in a file."""

from __future__ import annotations

import io

import pytest

from tidemill.config.run import RunSettings
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.programs.progress import ProgressLine, describe, fraction
from tidemill.scores import Score

_STATUS = LearnerStatus(LearnerState.TRAINING, learner_steps=500, env_steps=2_000, steps_per_s=250.0)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Cell(io.StringIO):
    """The output of a notebook's cell, by its module; it reports that it is not a terminal."""

    __module__ = "ipykernel.iostream"


def _score(mean: float, version: int = 1) -> Score:
    return Score(1.0, 0, 0, version, 5, mean, 0.0, mean, mean, mean, 1.0)


@pytest.mark.parametrize("stream", [_Terminal(), _Cell()])
def test_line_is_written_over_the_one_before_it(stream: io.StringIO) -> None:
    """A shorter one covers a longer one, and a note stays above."""
    line = ProgressLine(stream)
    line.show("a long line")
    line.show("short")
    line.note("a note")
    line.show("next")
    assert stream.getvalue() == "\ra long line\rshort      \r     \ra note\n\rnext"


def test_file_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without carriage returns; notes come at once."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.show("first")
    now_s = 109.0
    line.show("too early")
    line.note("a note")
    now_s = 110.0
    line.show("second")
    assert stream.getvalue() == "first\na note\nsecond\n"


@pytest.mark.parametrize(
    "scores, run, covered",
    [
        ([], RunSettings(), None),
        ([], RunSettings(max_env_steps=4_000), 0.5),
        ([], RunSettings(max_env_steps=20_000, max_wall_s=40.0), 0.25),
        ([], RunSettings(target_return=100.0), 0.0),
        ([20.0, 60.0, 50.0], RunSettings(target_return=100.0), 0.5),
        ([120.0], RunSettings(target_return=100.0), 1.0),
        ([20.0, 10.0], RunSettings(target_return=100.0), 0.0),
    ],
)
def test_bar_shows_the_way_to_the_nearest_end(scores: list[float], run: RunSettings, covered: float | None) -> None:
    """A limit counts from zero, a target from the first evaluation."""
    assert fraction(_STATUS, [_score(mean) for mean in scores], run, 10.0) == covered


def test_line_says_score_and_counts() -> None:
    """Before the learner answers it starts; when it no longer does, the last evaluation is under way."""
    scores = [_score(30.0), _score(20.0)]
    run = RunSettings(max_env_steps=4_000)
    assert describe(None, [], run, 3.0) == "0:03  starting"
    said = describe(_STATUS, scores, run, 65.0)
    assert said == "1:05  " + "█" * 10 + "░" * 10 + "  50%  score 20.0, best 30.0  2,000 decisions, 500 updates (250/s)"
    assert "not evaluated yet" in describe(_STATUS, [], RunSettings(), 65.0)
    assert describe(None, scores, run, 70.0) == "1:10  score 20.0, best 30.0  last evaluation"


def test_line_shows_the_best_score_that_fresh_episodes_did_not_refute() -> None:
    """A version that they refuted does not count as progress toward the target either."""
    scores, run = [_score(20.0), _score(30.0, version=2)], RunSettings(target_return=30.0)
    assert "100%  score 30.0, best 30.0" in describe(_STATUS, scores, run, 65.0)
    assert "   0%  score 30.0, best 20.0" in describe(_STATUS, scores, run, 65.0, [_score(19.0, version=2)])
