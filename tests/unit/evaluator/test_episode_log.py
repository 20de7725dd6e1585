"""episodes.csv holds each episode once, whatever happened to the process that wrote it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.services.evaluator.episode_log import EpisodeLog
from tidemill.services.evaluator.protocol import Evaluation

_HEADER = "params_version,kind,seed,episode_return,length\n"


def _evaluation(*returns: float) -> Evaluation:
    count = len(returns)
    return Evaluation(np.array(returns), np.arange(count) + 1, tuple(range(10, 10 + count)))


def test_log_writes_one_line_an_episode(tmp_path: Path) -> None:
    """Version, kind, seed, return and length, in the order of the seeds."""
    log = EpisodeLog(tmp_path / "episodes.csv")
    log.append(_evaluation(1.5, -2.0), 3, "evaluation")
    log.append(_evaluation(7.0), 3, "confirmation")
    rows = "3,evaluation,10,1.5,1\n3,evaluation,11,-2.0,2\n3,confirmation,10,7.0,1\n"
    assert (tmp_path / "episodes.csv").read_text() == _HEADER + rows


def test_log_goes_on_behind_whole_lines_after_a_restart(tmp_path: Path) -> None:
    """A line whose writing was cut is dropped; the others stay."""
    file = tmp_path / "episodes.csv"
    EpisodeLog(file).append(_evaluation(1.0), 1, "evaluation")
    file.write_text(file.read_text() + "2,evalua")
    EpisodeLog(file).append(_evaluation(5.0), 2, "evaluation")
    assert file.read_text() == _HEADER + "1,evaluation,10,1.0,1\n2,evaluation,10,5.0,1\n"
