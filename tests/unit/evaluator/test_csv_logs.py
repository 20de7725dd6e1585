"""The evaluator's CSV files: what they hold, and that they survive restarts and torn lines."""

from __future__ import annotations

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tidemill.errors import DataLoss
from tidemill.params.version import ParamsMetadata, Version
from tidemill.scores import COLUMNS, Score, ScoreReader, read_scores
from tidemill.services.evaluator.csv_logs import EpisodeLog, ScoreLog, score_of
from tidemill.services.evaluator.protocol import Evaluation

_FIRST_HEADER = (
    "wall_s,learner_steps,env_steps,params_version,episodes,mean,std,min,max,median,mean_length,human_normalised\n"
)
_HEADER = _FIRST_HEADER.rstrip() + ",format\n"
_FIRST_EPISODE_HEADER = "params_version,kind,seed,episode_return,length\n"
_EPISODE_HEADER = _FIRST_EPISODE_HEADER.rstrip() + ",format\n"


def _score(version: int, mean: float = 1.5) -> Score:
    return Score(2.5, 100 * version, 1000 * version, version, 25, mean, 0.25, -1.0, 3.0, 1.25, 80.0)


def test_log_writes_one_line_per_score_in_the_documented_columns(tmp_path: Path) -> None:
    """The file can be read without Tidemill."""
    log = ScoreLog(tmp_path / "scores.csv")
    log.append(_score(3))
    assert (tmp_path / "scores.csv").read_text() == _HEADER + "2.5,300,3000,3,25,1.5,0.25,-1.0,3.0,1.25,80.0,,1\n"


def test_log_continues_after_a_restart_and_knows_the_last_version(tmp_path: Path) -> None:
    """A restarted evaluator neither loses rows nor evaluates a version twice."""
    first = ScoreLog(tmp_path / "scores.csv")
    first.append(_score(3))
    second = ScoreLog(tmp_path / "scores.csv")
    assert second.last_version == 3
    second.append(_score(7, mean=-4.0))
    assert read_scores(tmp_path / "scores.csv") == [_score(3), _score(7, mean=-4.0)]
    assert second.of_version(7) == _score(7, mean=-4.0)
    assert second.of_version(4) is None


def test_log_cuts_off_a_torn_last_line(tmp_path: Path) -> None:
    """A row whose writing was cut is evaluated again, and the next row starts on a new line."""
    file = tmp_path / "scores.csv"
    ScoreLog(file).append(_score(3))
    file.write_text(file.read_text() + "9.5,400,40")
    log = ScoreLog(file)
    assert log.last_version == 3
    log.append(_score(4))
    assert read_scores(file) == [_score(3), _score(4)]


def test_log_refuses_a_file_of_something_else(tmp_path: Path) -> None:
    """Nothing is appended to a stranger's file, which stays as it is."""
    file = tmp_path / "scores.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(DataLoss, match=naming(",".join(COLUMNS))):
        ScoreLog(file)
    assert file.read_text() == "a,b\n1,2\n"


def test_scores_name_the_line_that_is_none(tmp_path: Path) -> None:
    """A broken line in the middle is reported with its number."""
    file = tmp_path / "scores.csv"
    file.write_text(_HEADER + "1,2,3\n2.5,300,3000,3,25,1.5,0.25,-1.0,3.0\n")
    with pytest.raises(DataLoss, match=naming("line 2")):
        read_scores(file)


def test_reader_parses_only_rows_that_were_added(tmp_path: Path) -> None:
    """Rows that it has read stay the same objects; a row whose writing is under way comes once it is whole."""
    log, reader = ScoreLog(tmp_path / "scores.csv"), ScoreReader(tmp_path / "scores.csv")
    log.append(_score(3))
    before = reader.read()
    assert reader.read() is before
    log.append(_score(4))
    with (tmp_path / "scores.csv").open("a") as file:
        file.write("2.5,500,5000,5,25,1.5,0.25,")
    assert reader.read() == (_score(3), _score(4))
    assert reader.read()[0] is before[0]
    with (tmp_path / "scores.csv").open("a") as file:
        file.write("-1.0,3.0,1.25,80.0,,1\n")
    assert reader.read() == (_score(3), _score(4), _score(5))


class _Meeting(PosixPath):
    """A file whose first two openings wait for each other for a while."""

    both: threading.Barrier
    met = False

    def open(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Open it, and note if another thread does at the same time."""
        with suppress(threading.BrokenBarrierError):
            self.both.wait(0.3)
            self.met = True
        return super().open(*args, **kwargs)


def test_reader_of_two_threads_reads_for_one_at_a_time(tmp_path: Path) -> None:
    """Otherwise both would add the same rows: the last poll of a run may begin while another still reads."""
    file = _Meeting(tmp_path / "scores.csv")
    file.both = threading.Barrier(2)
    for version in (3, 4):
        ScoreLog(tmp_path / "scores.csv").append(_score(version))
    reader = ScoreReader(file)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: reader.read(), range(2)))
    assert found == [(_score(3), _score(4))] * 2
    assert not file.met


def test_reader_names_the_line_of_an_added_row_that_is_none(tmp_path: Path) -> None:
    """It counts from the start of the file, at every attempt."""
    file = tmp_path / "scores.csv"
    ScoreLog(file).append(_score(3))
    reader = ScoreReader(file)
    reader.read()
    ScoreLog(file).append(_score(4))
    file.write_text(file.read_text() + "1,2,3\n")
    for _ in range(2):
        with pytest.raises(DataLoss, match=naming("line 4")):
            reader.read()


@pytest.mark.parametrize("rows", [[], [_score(9)], [_score(9), _score(4)], [_score(n) for n in range(5, 15)]])
def test_reader_reads_a_file_that_was_replaced_from_its_start(tmp_path: Path, rows: list[Score]) -> None:
    """Another run's file, shorter or longer than the one it has read, or none."""
    for version in (3, 4):
        ScoreLog(tmp_path / "scores.csv").append(_score(version))
    reader = ScoreReader(tmp_path / "scores.csv")
    assert len(reader.read()) == 2
    for row in rows:
        ScoreLog(tmp_path / "other.csv").append(row)
    (tmp_path / "scores.csv").unlink()
    if rows:
        (tmp_path / "other.csv").rename(tmp_path / "scores.csv")
    assert reader.read() == tuple(rows)


def test_score_holds_the_mean_and_the_spread_over_the_sample() -> None:
    """Returns 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4."""
    evaluation = Evaluation(np.array([1.0, 2.0, 3.0, 6.0]), np.array([1, 2, 3, 4]), (7, 8, 9, 10))
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    version = Version(5, 4, 1, created, ParamsMetadata(learner_steps=50, env_steps=500), ())
    score = score_of(evaluation, version, wall_s=12.0)
    assert score == Score(12.0, 50, 500, 5, 4, 3.0, 3.5**0.5, 1.0, 6.0, 2.5, 2.5)


def test_score_of_an_atari_game_is_human_normalised() -> None:
    """Pong's mean of -3.05 is half-way from -20.7, random play, to 14.6, a person; and it survives the file."""
    evaluation = Evaluation(np.array([-3.05]), np.array([900]), (7,))
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    version = Version(5, 4, 1, created, ParamsMetadata(env_id="ALE/Pong-v5"), ())
    assert score_of(evaluation, version, wall_s=1.0).human_normalised == pytest.approx(0.5)


def test_log_of_the_first_releases_gets_the_number_of_its_format(tmp_path: Path) -> None:
    """Its rows keep what they say, and new rows follow."""
    file = tmp_path / "scores.csv"
    file.write_text(_FIRST_HEADER + "2.5,300,3000,3,25,1.5,0.25,-1.0,3.0,1.25,80.0,\n")
    assert read_scores(file) == [_score(3)]
    log = ScoreLog(file)
    log.append(_score(4))
    assert file.read_text().splitlines()[1] == "2.5,300,3000,3,25,1.5,0.25,-1.0,3.0,1.25,80.0,,1"
    assert read_scores(file) == [_score(3), _score(4)]


def _evaluation(*returns: float) -> Evaluation:
    count = len(returns)
    return Evaluation(np.array(returns), np.arange(count) + 1, tuple(range(10, 10 + count)))


def test_log_writes_one_line_an_episode(tmp_path: Path) -> None:
    """Version, kind, seed, return, length and the format's number, in the order of the seeds."""
    log = EpisodeLog(tmp_path / "episodes.csv")
    log.append(_evaluation(1.5, -2.0), 3, "evaluation")
    log.append(_evaluation(7.0), 3, "confirmation")
    rows = "3,evaluation,10,1.5,1,1\n3,evaluation,11,-2.0,2,1\n3,confirmation,10,7.0,1,1\n"
    assert (tmp_path / "episodes.csv").read_text() == _EPISODE_HEADER + rows


def test_log_goes_on_behind_whole_lines_after_a_restart(tmp_path: Path) -> None:
    """A line whose writing was cut is dropped; the others stay."""
    file = tmp_path / "episodes.csv"
    EpisodeLog(file).append(_evaluation(1.0), 1, "evaluation")
    file.write_text(file.read_text() + "2,evalua")
    EpisodeLog(file).append(_evaluation(5.0), 2, "evaluation")
    assert file.read_text() == _EPISODE_HEADER + "1,evaluation,10,1.0,1,1\n2,evaluation,10,5.0,1,1\n"


def test_log_knows_the_seeds_of_confirmations_after_a_restart(tmp_path: Path) -> None:
    """The one after the largest, whichever rows are damaged; evaluations do not count."""
    file = tmp_path / "episodes.csv"
    log = EpisodeLog(file)
    assert log.next_confirmation_seed == 0
    log.append(_evaluation(1.0, 2.0), 1, "confirmation")
    log.append(_evaluation(1.0, 2.0, 3.0), 2, "evaluation")
    assert log.next_confirmation_seed == 12
    file.write_bytes(file.read_bytes() + b"3,confirmation,\xff\n")
    assert EpisodeLog(file).next_confirmation_seed == 12


def test_episodes_of_the_first_releases_get_the_number_of_their_format(tmp_path: Path) -> None:
    """Their rows keep what they say; a torn last line is dropped, and new rows follow."""
    file = tmp_path / "episodes.csv"
    file.write_text(_FIRST_EPISODE_HEADER + "1,evaluation,10,1.0,1\n2,evalu")
    EpisodeLog(file).append(_evaluation(5.0), 2, "evaluation")
    assert file.read_text() == _EPISODE_HEADER + "1,evaluation,10,1.0,1,1\n2,evaluation,10,5.0,1,1\n"


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe\x00\n", _EPISODE_HEADER.encode()[:20], b"\n\n"])
def test_file_that_holds_no_episodes_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """No run reads it, so it does not end one; nothing is lost."""
    file = tmp_path / "episodes.csv"
    file.write_bytes(content)
    EpisodeLog(file).append(_evaluation(5.0), 2, "evaluation")
    assert file.read_text() == _EPISODE_HEADER + "2,evaluation,10,5.0,1,1\n"
    assert (tmp_path / "episodes.csv.damaged").read_bytes() == content


def test_episodes_with_damaged_rows_are_kept_as_they_are(tmp_path: Path) -> None:
    """The rows before and after them are whole."""
    file = tmp_path / "episodes.csv"
    damaged = _EPISODE_HEADER.encode() + b"1,evaluation,10,1.0,1,1\n\xff\x00,,\n"
    file.write_bytes(damaged)
    EpisodeLog(file).append(_evaluation(5.0), 2, "evaluation")
    assert file.read_bytes() == damaged + b"2,evaluation,10,5.0,1,1\n"
