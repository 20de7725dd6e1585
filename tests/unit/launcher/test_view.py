"""Output on the terminal while a run continues."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Literal, NoReturn

import pytest
from rich.console import Console

from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import EvaluatorSettings, LauncherSettings
from tidemill.errors import ConfigError, TidemillError
from tidemill.installation import how_to_install
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus, SourceStatus
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.scores import COLUMNS, Score
from tidemill.services.evaluator.csv_logs import ScoreLog
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view import poller as poller_module
from tidemill.services.launcher.view.curves import by_kind, env_failures, training_return
from tidemill.services.launcher.view.json_lines import JsonView
from tidemill.services.launcher.view.live import LiveView, render, sparkline
from tidemill.services.launcher.view.poller import StatusPoller
from tidemill.services.launcher.view.processes import UsageMeter
from tidemill.services.launcher.view.rate_meter import RateMeter
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow, ProcessUsage
from tidemill.services.launcher.view.terminal import (
    PlainView,
    QuietView,
    describe_progress,
    describe_shards,
    describe_sources,
    make_view,
)

_SCORE = Score(61.0, 5_000, 20_000, 50, 25, 123.45, 10.5, 80.0, 140.0, 120.0, 200.0)
_BEST = dataclasses.replace(_SCORE, mean=150.0, params_version=40)
_LEARNER = LearnerStatus(
    LearnerState.TRAINING,
    6_000,
    24_000,
    steps_per_s=312.0,
    wait_fraction=0.05,
    params_version=60,
    table_items=23_900,
    metrics={POLICY_LAG: 2.5},
)
_PROCESSES = (
    ProcessRow("replay", Phase.SERVING, 4711, 0, "", ProcessUsage(0.125, 64 * 2**20)),
    ProcessRow("learner", Phase.BACKOFF, None, 2, "was killed by signal 9", None),
)
_STATUS = ClusterStatus(72.0, _PROCESSES, _LEARNER, 1_234.0, _SCORE, _BEST, scores=(_SCORE,))


def _rendered(
    status: ClusterStatus, run: RunSettings, events: tuple[str, ...] = (), width: int = 110, height: int = 100
) -> str:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(render(RunConfig(run=run), status, events, console))
    shown = console.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue()


@pytest.mark.parametrize("every_s", [0.5, 1.0, 10.0, 60.0])
def test_rate_is_shown_however_seldom_one_looks(every_s: float) -> None:
    """A count that grows by 40 per second does so at each look but the first, and at once after a step back."""
    rate = RateMeter()
    assert rate.update(100.0, 0) == 0.0
    looks = [rate.update(100.0 + i * every_s, round(i * every_s * 40)) for i in range(1, 60)]
    assert looks == pytest.approx([40.0] * 59)
    assert rate.update(10_000.0, 5) == 0.0
    assert rate.update(10_000.0 + every_s, 5 + round(20 * every_s)) == pytest.approx(20.0)


def test_rate_is_of_the_newest_ten_seconds() -> None:
    """What was before them does not count."""
    rate = RateMeter()
    found = [rate.update(float(second), 0 if second < 20 else (second - 20) * 100) for second in range(31)]
    assert found[20] == 0.0
    assert found[29] == pytest.approx(90.0)
    assert found[30] == pytest.approx(100.0)


def test_shards_are_shown_with_what_they_hold_and_give() -> None:
    """`tidemill status` has a line for each; the views say which of them does not answer."""
    shards = (
        ShardReport("0", "unix:///a.sock", True, 12_000, 3456.7, 900),
        ShardReport("1", "unix:///b.sock", False, 0, 0.0, 100),
    )
    assert describe_shards(shards) == {
        "shard 0": "12,000 items, weight 3,457, 90% of all samples, unix:///a.sock",
        "shard 1": "does not answer, 10% of all samples, unix:///b.sock",
    }
    learner = dataclasses.replace(_LEARNER, shards=shards)
    status = dataclasses.replace(_STATUS, learner=learner)
    assert "without replay shard 1" in _rendered(status, RunSettings())
    assert describe_progress(status, learner, RunSettings()).endswith("learner is busy, without replay shard 1")
    assert "shard" not in _rendered(_STATUS, RunSettings())


def test_sources_are_shown_with_their_share_and_what_they_gave() -> None:
    """`tidemill status` has a line for each; an age that no server says is left out."""
    sources = (SourceStatus("demos", 0.25, 1_998, 64_000, 3_600.0), SourceStatus("yesterday", 0.5, 10))
    assert describe_sources(sources) == {
        "source demos": "25% of each batch, 1,998 items, 64,000 samples, 3,600 s old on average",
        "source yesterday": "50% of each batch, 10 items, 0 samples",
    }


def test_live_view_shows_progress_scores_and_processes() -> None:
    """Counters with their limits and rates, newest and best score, and each process with its troubles."""
    run = RunSettings(name="lander", target_return=200.0, max_env_steps=100_000)
    shown = _rendered(_STATUS, run, ("   61.0 s  evaluator is ready",))
    for words in (
        "lander: sac on LunarLanderContinuous-v3, 1:12",
        "24,000 of 100,000",
        "1,234/s",
        "312/s",
        "learner is busy",
        "version 60, policy lag 2.5",
        "2% full, replay ratio 0.25",
        "123.5",
        "150.0",
        "version 40",
        "200",
        "4711",
        "12%",
        "64 MiB",
        "restarting",
        "was killed by signal 9",
        "evaluator is ready",
    ):
        assert words in shown


@pytest.mark.parametrize("width", [80, 120, 160])
def test_live_view_has_everything_in_its_place(width: int) -> None:
    """Nothing is cut off or runs into another line, whatever the width; compared to the text that was looked at."""
    run = RunSettings(name="lander", target_return=200.0, max_env_steps=100_000)
    first = dataclasses.replace(_SCORE, mean=-120.0)
    warning = (
        "the disk of runs/lander is full (3 MiB free): nothing more is stored until there is room; delete or move it"
    )
    learner = dataclasses.replace(_LEARNER, checkpoint_steps=5_000, checkpoint_error="no space left on device")
    scores = tuple(dataclasses.replace(_SCORE, mean=float(mean)) for mean in range(-120, 150, 3))
    status = dataclasses.replace(
        _STATUS, first=first, scores=scores, learner=learner, is_disk_full=True, warnings=(warning,)
    )
    events = ("   61.0 s  evaluator is ready", "   70.2 s  learner was killed by signal 9; restarting in 1.0 s")
    expected = (Path(__file__).parent / f"live_view_{width}.txt").read_text(encoding="utf-8")
    assert _rendered(status, run, events, width=width) == expected


@pytest.mark.parametrize(
    "width, height, actors, shown", [(80, 24, 4, 1), (160, 45, 32, 16), (120, 50, 8, 8), (80, 16, 64, 0)]
)
def test_live_view_fits_the_terminal(width: int, height: int, actors: int, shown: int) -> None:
    """Actors are summarised in as many lines as there are; the newest events and the line on Ctrl-C stay."""
    names = ("replay", "paramserver", "learner", "evaluator")
    rows = [ProcessRow(name, Phase.SERVING, 1, 0, "", ProcessUsage(0.5, 2**20)) for name in names]
    rows += [ProcessRow(f"actor-{i}", Phase.SERVING, 1, 0, "", ProcessUsage(0.5, 2**20)) for i in range(actors)]
    if actors > 8:
        rows[-1] = dataclasses.replace(rows[-1], phase=Phase.BACKOFF, restarts=1, reason="was killed by signal 9")
    status = dataclasses.replace(
        _STATUS, processes=tuple(rows), first=_SCORE, scores=(_SCORE, _BEST), evaluating="evaluating version 9: 1 of 5"
    )
    run = RunSettings(name="lander", target_return=200.0, max_env_steps=100_000)
    events = tuple(f"   {i}.0 s  event {i}" for i in range(6))
    lines = _rendered(status, run, events, width, height).splitlines()
    assert len(lines) < max(height, 18)
    assert "Ctrl-C stops and keeps everything" in lines[-1]
    text = "\n".join(lines)
    assert "event 4" in text
    assert "event 5" in text
    assert sum("│ actor" in line for line in lines) == max(shown, 1)
    if shown == 16:
        assert "actor x 17" in text
    if actors > 8:
        assert "was killed by signal 9" in text


@pytest.mark.parametrize("width, height", [(80, 24), (160, 45)])
@pytest.mark.parametrize("actors", [1, 4, 32])
def test_view_with_everything_to_say_fits(width: int, height: int, actors: int) -> None:
    """Long lines are cut then: each warning, each kind of process in trouble, two events and Ctrl-C are there."""
    reason = "ended with exit code 1: RuntimeError: the simulator refused its scene file, which is of another version"
    rows = [ProcessRow(name, Phase.SERVING, 1, 0, "", ProcessUsage(0.5, 2**20)) for name in ("replay", "paramserver")]
    names = ("learner", "evaluator", *(f"actor-{i}" for i in range(actors)))
    rows += [ProcessRow(name, Phase.BACKOFF, None, 12, reason, None) for name in names]
    warning = (
        "of the disk is nearly nothing left, and what is told about that goes on for longer than one line has room"
    )
    status = dataclasses.replace(
        _STATUS,
        processes=tuple(rows),
        first=_SCORE,
        scores=(_SCORE, _BEST),
        training_return=12.5,
        evaluating="evaluating version 123,456: 1 of 100 episodes",
        warnings=(f"first {warning}", f"second {warning}", f"third {warning}"),
    )
    run = RunSettings(name="lander", target_return=200.0, max_env_steps=100_000_000, max_wall_s=86_400.0)
    events = tuple(f"   {i}.0 s  event {i}: {reason}; restarting in 1.0 s" for i in range(6))
    lines = _rendered(status, run, events, width, height).splitlines()
    assert len(lines) < height
    assert "Ctrl-C stops and keeps everything" in lines[-1]
    text = "\n".join(lines)
    for words in ("! first", "! second", "! third", "│ learner", "│ evaluator", "│ actor", "event 4", "event 5"):
        assert words in text
    assert "version 123,456" in text


def test_training_return_is_that_of_the_actors_that_act(tmp_path: Path) -> None:
    """The mean over their files' last whole lines, without an actor of an earlier session and the cluster's curves."""
    assert training_return(tmp_path) is None
    folder = tmp_path / "curves"
    folder.mkdir()
    for name, line in {
        "actor-0": '{"time": 1000, "actor/episode_return": 1.0}\n{"time": 1010, "actor/episode_return": 20.0}\n{"ti',
        "actor-1": '{"time": 1012, "actor/episode_return": 30.0}\n',
        "actor-2": '{"time": 10, "actor/episode_return": 9.0}\n',
        "actor-3": '{"time": 1012, "actor/env_steps_per_s": 9.0}\n',
        "cluster": '{"time": 1012, "actors/policy_lag": 9.0}\n',
        "empty": "",
    }.items():
        (folder / f"{name}.jsonl").write_text(line)
    assert training_return(tmp_path) == 25.0
    status = dataclasses.replace(_STATUS, training_return=25.0)
    assert "25.0" in next(line for line in _rendered(status, RunSettings()).splitlines() if "training " in line)
    assert ", training return 25.0," in describe_progress(status, _LEARNER, RunSettings())


def test_failures_of_environments_are_those_of_all_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kind, in their files' last whole lines, without an actor of an earlier session."""
    config = RunConfig(cluster=ClusterSettings(replay=("dns:nowhere:1",), learner="unix:///nowhere"))
    assert env_failures(tmp_path) == {}
    (tmp_path / "curves").mkdir()
    for name, time_s, counts in (
        ("actor-0", 1_001.0, {"raised": 2.0, "died": 1.0}),
        ("actor-1", 1_001.0, {"raised": 3.0}),
        ("actor-2", 1.0, {"raised": 40.0}),
    ):
        line = {"time": time_s} | {f"actor/env_failures/{kind}": count for kind, count in counts.items()}
        (tmp_path / "curves" / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    assert by_kind(env_failures(tmp_path)) == {"raised": 5, "died": 1}
    for is_new_session in (True, False):  # a page that is opened while a run trains shows what has failed so far
        with contextlib.closing(StatusPoller(config, tmp_path, tuple, is_new_session=is_new_session)) as poller:
            monkeypatch.setattr(poller, "_learner_status", lambda: None)
            status = poller.poll()
        assert status.env_failures == {"raised": 5, "died": 1}
        assert any("environments of the actors failed" in line for line in status.warnings) is not is_new_session


def test_version_whose_evaluation_failed_is_a_warning_until_a_later_one_has_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, also while the next version is evaluated, whose progress takes its place in the file."""
    config = RunConfig(cluster=ClusterSettings(replay=("dns:nowhere:1",), learner="unix:///nowhere"))
    progress, scores = ProgressFile(tmp_path), ScoreLog(tmp_path / "scores.csv")
    with contextlib.closing(StatusPoller(config, tmp_path, tuple)) as poller:
        monkeypatch.setattr(poller, "_learner_status", lambda: None)
        progress.refuse(1_234, "no episode could be completed: environment 0 raised KeyError")
        refused = poller.poll()
        line = "version 1,234 was not evaluated: no episode could be completed: environment 0 raised KeyError"
        assert line in refused.warnings
        assert refused.evaluating == ""
        progress.write(1_235, 0, 5)
        assert line in poller.poll().warnings
        scores.append(dataclasses.replace(_SCORE, params_version=1_235))
        assert not any("not evaluated" in each for each in poller.poll().warnings)


def test_episodes_that_a_score_leaves_out_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until an evaluation has all; what an earlier session measured may have had fewer, and failed nowhere."""
    evaluator = EvaluatorSettings(episodes=25, confirm_episodes=20)
    cluster = ClusterSettings(replay=("dns:nowhere:1",), learner="unix:///nowhere")
    scores, confirmations = ScoreLog(tmp_path / "scores.csv"), ScoreLog(tmp_path / "confirmations.csv")
    measured = dataclasses.replace(_SCORE, params_version=7)
    scores.append(dataclasses.replace(measured, episodes=5))
    config = RunConfig(cluster=cluster, evaluator=evaluator)
    with (
        contextlib.closing(StatusPoller(config, tmp_path, tuple)) as poller,
        contextlib.closing(StatusPoller(RunConfig(cluster=cluster), tmp_path, tuple, is_new_session=False)) as page,
    ):
        monkeypatch.setattr(poller, "_learner_status", lambda: None)
        monkeypatch.setattr(page, "_learner_status", lambda: None)

        def told() -> list[str]:
            return [line.partition(":")[0] for line in poller.poll().warnings if "left out" in line]

        assert told() == []
        scores.append(dataclasses.replace(measured, episodes=17))
        assert told() == ["8 of 25 episodes of the newest evaluation failed and are left out of its mean"]
        assert not any("left out" in line for line in page.poll().warnings)  # its settings may not be the evaluator's
        scores.append(dataclasses.replace(measured, episodes=25))
        assert told() == []
        confirmations.append(dataclasses.replace(measured, episodes=14))
        assert told() == ["6 of 20 episodes of the newest confirmation failed and are left out of its mean"]
        (tmp_path / "scores.csv").rename(tmp_path / "aside.csv")
        assert told() == []
        (tmp_path / "aside.csv").rename(tmp_path / "scores.csv")
        scores.append(dataclasses.replace(measured, episodes=25, params_version=8))
        assert told() == []


def test_scores_are_parsed_once_however_often_a_view_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll of a run of weeks costs as much as one of a new run; a new evaluation or confirmation is in the next."""
    cluster = ClusterSettings(replay=("dns:nowhere:1",), learner="unix:///nowhere")
    scores, confirmations = ScoreLog(tmp_path / "scores.csv"), ScoreLog(tmp_path / "confirmations.csv")
    scores.append(_BEST)
    with contextlib.closing(StatusPoller(RunConfig(cluster=cluster), tmp_path, tuple)) as poller:
        monkeypatch.setattr(poller, "_learner_status", lambda: None)
        before = poller.poll().scores
        assert poller.poll().scores is before
        scores.append(_SCORE)
        status = poller.poll()
        assert status.scores == (_BEST, _SCORE)
        assert status.scores[0] is before[0]
        assert status.best == _BEST
        confirmations.append(dataclasses.replace(_BEST, mean=-50.0))
        assert poller.poll().best == _SCORE


def test_best_score_is_that_of_the_version_tagged_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh episodes refuted version 40, which does not count as progress toward the target either."""
    run, cluster = (
        RunSettings(target_return=140.0),
        ClusterSettings(replay=("dns:nowhere:1",), learner="unix:///nowhere"),
    )
    for score in (dataclasses.replace(_SCORE, mean=100.0, params_version=30), _BEST, _SCORE):
        ScoreLog(tmp_path / "scores.csv").append(score)
    ScoreLog(tmp_path / "confirmations.csv").append(dataclasses.replace(_BEST, mean=110.0))
    with contextlib.closing(StatusPoller(RunConfig(run=run, cluster=cluster), tmp_path, tuple)) as poller:
        monkeypatch.setattr(poller, "_learner_status", lambda: None)
        status = poller.poll()
    assert status.best == _SCORE
    assert "59%" in _rendered(status, run)


@pytest.mark.parametrize(
    "values, width, line",
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8, "▁▂▃▄▅▆▇█"),
        ([-1.0, 1.0, 5.0, 7.0, 14.0, 14.0], 3, "▁▄█"),
        ([3.0, 3.0, 3.0], 8, "▁▁▁"),
        ([1.0, math.nan, 2.0], 8, "▁█"),
        ([math.nan], 8, ""),
        ([], 8, ""),
    ],
)
def test_sparkline_is_the_curve_in_one_line(values: list[float], width: int, line: str) -> None:
    """From the lowest to the highest; more values than there is room for are averaged."""
    assert sparkline(values, width) == line


def test_live_view_before_the_first_evaluation_shows_no_score() -> None:
    """A dash, not a number that could be one: a real Pong agent begins at -21."""
    shown = _rendered(dataclasses.replace(_STATUS, newest=None, best=None), RunSettings(target_return=18.0))
    assert [line.split()[3] for line in shown.splitlines() if " score " in line] == ["-", "-"]
    assert "%" not in next(line for line in shown.splitlines() if "target" in line)


@pytest.mark.parametrize(
    "confirmed, words",
    [
        ([], "reached; to be confirmed by fresh episodes"),
        ([(40, 90.0)], "reached; to be confirmed by fresh episodes"),
        ([(40, 90.0), (50, 95.0)], "reached, but fresh episodes did not confirm it"),
    ],
)
def test_live_view_says_that_a_confirmation_failed(confirmed: list[tuple[int, float]], words: str) -> None:
    """Until another version reaches the target, whose confirmation is under way then."""
    status = dataclasses.replace(
        _STATUS,
        first=_SCORE,
        scores=(_BEST, _SCORE),
        confirmations=tuple(dataclasses.replace(_SCORE, params_version=n, mean=mean) for n, mean in confirmed),
    )
    assert words in _rendered(status, RunSettings(target_return=100.0))


@pytest.mark.parametrize(
    "first, best, target, fraction",
    [(-120.0, 40.0, 200.0, 0.5), (-120.0, -120.0, 200.0, 0.0), (-120.0, 210.0, 200.0, 1.0), (250.0, 250.0, 200.0, 1.0)],
)
def test_snapshot_measures_the_way_from_the_first_score_to_the_target(
    first: float, best: float, target: float, fraction: float
) -> None:
    """Scores may be negative: the share of the target alone would say nothing."""
    status = dataclasses.replace(
        _STATUS, first=dataclasses.replace(_SCORE, mean=first), best=dataclasses.replace(_SCORE, mean=best)
    )
    assert status.target_fraction(target) == fraction
    assert status.target_fraction(None) is None
    assert ClusterStatus(0.0, ()).target_fraction(target) is None


def test_snapshot_tells_the_time_to_the_nearest_limit() -> None:
    """76,000 decisions at 1,234 per second, 4,000 updates at 312, 528 s: the updates are over first."""
    limits = RunSettings(max_env_steps=100_000, max_learner_steps=10_000, max_wall_s=600.0)
    assert _STATUS.left_s(limits) == pytest.approx(4_000 / 312)
    assert _STATUS.left_s(RunSettings(max_wall_s=600.0)) == 528.0
    assert _STATUS.left_s(RunSettings()) is None
    still = dataclasses.replace(_STATUS, env_steps_per_s=0.0)
    assert still.left_s(RunSettings(max_env_steps=100_000)) is None
    ended = dataclasses.replace(_PROCESSES[1], phase=Phase.ENDED)
    assert dataclasses.replace(_STATUS, processes=(ended,)).left_s(RunSettings(max_wall_s=600.0)) is None


def test_snapshot_says_what_an_end_now_would_keep() -> None:
    """All of it, unless the last checkpoint failed or the next one will."""
    assert _STATUS.keeps == "keeps everything"
    failed = dataclasses.replace(_LEARNER, checkpoint_steps=5_000, checkpoint_error="no space left on device")
    full = dataclasses.replace(_STATUS, is_disk_full=True)
    assert dataclasses.replace(full, learner=failed).keeps == "keeps what was learned up to step 5,000 only"
    none = dataclasses.replace(failed, checkpoint_steps=0)
    assert dataclasses.replace(full, learner=none).keeps == "keeps nothing of what was learned"
    assert dataclasses.replace(_STATUS, learner=none).keeps == "tries to keep everything; the last checkpoint failed"
    assert full.keeps == "cannot keep what was learned since the last checkpoint"
    assert full.waiting == "the disk is full"
    waits = dataclasses.replace(full, learner=LearnerStatus(state=LearnerState.WAITING))
    assert waits.waiting == "the disk is full"  # which is why no data comes


def test_live_view_shows_a_run_of_which_nothing_is_known_yet() -> None:
    """The first picture comes before the first answer."""
    assert "waiting for the learner to start" in _rendered(ClusterStatus(0.0, ()), RunSettings())


def test_live_view_keeps_the_last_counts_of_a_learner_that_is_gone() -> None:
    """The last picture of a run shows how far it came, and no rate."""
    shown = _rendered(dataclasses.replace(_STATUS, learner_answers=False, env_steps_per_s=0.0), RunSettings())
    for words in ("24,000", "the learner does not answer"):
        assert words in shown
    assert "312/s" not in shown


def test_plain_view_prints_events_scores_once_and_progress_every_ten_seconds() -> None:
    """Lines that read well in a log file."""
    stream = io.StringIO()
    view = PlainView(RunSettings(max_env_steps=100_000), stream)
    view.event("learner was killed by signal 9", ["last words"])
    for elapsed_s in (1.0, 2.0, 9.0, 11.5):
        view.show(dataclasses.replace(_STATUS, elapsed_s=elapsed_s))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["[    0.0 s] learner was killed by signal 9", "           | last words"]
    assert sum("evaluation  mean 123.5" in line for line in lines) == 1
    progress = [line for line in lines if "env steps 24,000 (1,234/s)" in line]
    assert [line[:11] for line in progress] == ["[    1.0 s]", "[   11.5 s]"]
    assert all(line.endswith("learner is busy, about 1:01 left") for line in progress)


@pytest.mark.parametrize("view", [PlainView, JsonView])
def test_progress_of_a_learner_that_still_starts_is_not_printed(view: type[PlainView | JsonView]) -> None:
    """It has not restored its counts, and would seem to have begun again at 0."""
    stream = io.StringIO()
    shown = view(RunSettings(), stream)
    shown.show(ClusterStatus(1.0, (), LearnerStatus(LearnerState.STARTING)))
    assert stream.getvalue() == ""
    shown.show(ClusterStatus(2.0, (), _LEARNER))
    assert "24" in stream.getvalue()


def test_plain_view_prints_a_warning_when_it_comes_not_each_time() -> None:
    """Numbers in it may change; it is reported again when it had gone."""
    stream = io.StringIO()
    view = PlainView(RunSettings(), stream)
    for warnings in (("3.5 MiB left",), ("2 MiB left",), (), ("1,000 MiB left",)):
        view.show(ClusterStatus(0.0, (), warnings=warnings))
    assert [line.partition("] ")[2] for line in stream.getvalue().splitlines()] == [
        "warning: 3.5 MiB left",
        "warning: 1,000 MiB left",
    ]


def test_json_view_prints_a_warning_when_it_comes_not_each_time() -> None:
    """As the view for people does: the room on a disk changes at every look."""
    stream = io.StringIO()
    view = JsonView(RunSettings(), stream)
    for warnings in (("3.5 MiB left",), ("2 MiB left",), (), ("1,000 MiB left",)):
        view.show(ClusterStatus(0.0, (), warnings=warnings))
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "3.5 MiB left",
        "1,000 MiB left",
    ]


def test_json_view_prints_one_object_per_line() -> None:
    """Events, warnings that are new, each score once, progress every ten seconds, and the result at last."""
    stream = io.StringIO()
    view = JsonView(RunSettings(max_env_steps=100_000), stream)
    view.event("replay is ready", ["detail"])
    for elapsed_s in (1.0, 5.0, 12.0):
        view.show(dataclasses.replace(_STATUS, elapsed_s=elapsed_s, warnings=("the disk is full",)))
    view.end(Path("runs/a"), 0, {"solved": True}, ["for people"])
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["event", "warning", "evaluation", "progress", "progress", "end"]
    assert lines[0] == {"kind": "event", "elapsed_s": 0.0, "message": "replay is ready", "details": ["detail"]}
    assert lines[1] == {"kind": "warning", "elapsed_s": 1.0, "message": "the disk is full"}
    assert lines[2]["mean"] == _SCORE.mean
    assert lines[4]["elapsed_s"] == 12.0
    assert lines[4]["env_steps"] == _LEARNER.env_steps
    end = {"kind": "end", "elapsed_s": 12.0, "folder": "runs/a", "exit_code": 0, "result": {"solved": True}}
    assert lines[5] == end


@pytest.mark.parametrize("kind", ["json", "plain"])
def test_score_of_an_earlier_session_is_not_printed_again(kind: Literal["json", "plain"]) -> None:
    """A resumed run shows those that follow."""
    view = make_view(RunConfig(launcher=LauncherSettings(view=kind)), stream := io.StringIO(), earlier=1)
    view.show(_STATUS)
    assert "evaluation" not in stream.getvalue()
    view.show(dataclasses.replace(_STATUS, scores=(_SCORE, _BEST)))
    assert stream.getvalue().count("evaluation") == 1


@pytest.mark.parametrize("view", [PlainView, JsonView])
def test_every_score_is_printed_once_however_many_come_between_two_polls(view: type[PlainView | JsonView]) -> None:
    """Also if the file could not be read at a poll."""
    shown = view(RunSettings(), stream := io.StringIO())
    for scores in ((), (_SCORE, _BEST, _SCORE), (), (_SCORE, _BEST, _SCORE, _BEST)):
        shown.show(ClusterStatus(1.0, (), scores=scores))
    lines = stream.getvalue().splitlines()
    assert [f"{_BEST.mean:.1f}" in line for line in lines] == [False, True, False, True]


def test_quiet_view_prints_warnings_and_the_result() -> None:
    """A kind of warning once, however its numbers change; of a run that failed the whole summary."""
    stream = io.StringIO()
    view = QuietView(stream)
    view.event("replay is ready")
    for free in (3, 2):
        view.show(dataclasses.replace(_STATUS, warnings=(f"the disk is full ({free} MiB free)",)))
    summary = ["", "a: reached its target", "solved after 5 s", "", "In runs/a:", "  logs"]
    view.end(Path("runs/a"), 0, {}, summary)
    assert stream.getvalue().splitlines() == [
        "warning: the disk is full (3 MiB free)",
        "a: reached its target",
        "solved after 5 s",
    ]
    view.end(Path("runs/a"), 1, {}, summary)
    assert "  logs" in stream.getvalue()


@pytest.mark.parametrize("kind, view", [("json", JsonView), ("quiet", QuietView), ("plain", PlainView)])
def test_view_is_the_one_that_was_asked_for(kind: Literal["json", "quiet", "plain"], view: type) -> None:
    """`launcher.view` decides."""
    assert isinstance(make_view(RunConfig(launcher=LauncherSettings(view=kind)), io.StringIO()), view)


@pytest.mark.parametrize("term, view", [("xterm", LiveView), ("dumb", PlainView), ("unknown", PlainView)])
def test_view_is_plain_on_a_terminal_that_only_appends(monkeypatch: pytest.MonkeyPatch, term: str, view: type) -> None:
    """Such as an editor's, where a live view would show nothing."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(terminal := io.StringIO(), "isatty", lambda: True)
    made = make_view(RunConfig(), terminal)
    made.close()
    assert isinstance(made, view)


def test_view_is_live_only_on_a_terminal() -> None:
    """`auto` prints plain lines into a file; `live` and `plain` are obeyed."""
    assert isinstance(make_view(RunConfig(), io.StringIO()), PlainView)
    live = make_view(RunConfig(launcher=LauncherSettings(view="live")), io.StringIO())
    assert isinstance(live, LiveView)
    live.event("hello", ["detail"])
    live.show(_STATUS)
    live.close()


@pytest.mark.parametrize(
    "learner, words",
    [
        (None, "waiting for the learner to start"),
        (LearnerStatus(LearnerState.WAITING, table_items=523), "learner waits for data (523 items in the table)"),
        (LearnerStatus(LearnerState.PAUSED), "learner is paused"),
        (LearnerStatus(LearnerState.TRAINING, wait_fraction=0.45), "learner waits 45% of the time"),
        (LearnerStatus(LearnerState.TRAINING, wait_fraction=0.1), "learner is busy"),
    ],
)
def test_snapshot_says_who_waits(learner: LearnerStatus | None, words: str) -> None:
    """The bottleneck in words."""
    assert ClusterStatus(0.0, (), learner).waiting == words


@pytest.mark.parametrize("items, words", [(999, "learner waits for data (999 items in the table)"), (1_000, "")])
def test_learner_whose_table_has_enough_waits_for_new_steps(items: int, words: str) -> None:
    """Its updates are as many as the decisions allow, as after a resume until somebody plays."""
    learner = LearnerStatus(LearnerState.WAITING, table_items=items)
    expected = words or "learner waits for new steps (learner.updates_per_env_step)"
    assert ClusterStatus(0.0, (), learner, min_size=1_000).waiting == expected


def test_time_left_counts_earlier_sessions() -> None:
    """A run that had trained for 300 of 600 s has 200 left, 100 s after it was resumed."""
    resumed = ClusterStatus(100.0, (), _LEARNER, earlier_s=300.0)
    assert resumed.left_s(RunSettings(max_wall_s=600.0)) == 200.0
    assert resumed.fraction(RunSettings(max_wall_s=600.0)) == pytest.approx(400 / 600)


def test_poller_knows_of_earlier_sessions_and_no_rate_of_counts_that_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the decisions of all sessions would seem to have been made in a second."""
    (tmp_path / "wall_clock.json").write_text('{"wall_s": 300.0, "before_s": 0.0, "session_start_s": 1.0}')
    config = RunConfig(cluster=ClusterSettings(replay=("unix:///nowhere",), learner="unix:///nowhere"))
    answers = iter(
        [
            LearnerStatus(LearnerState.STARTING, env_steps=0),
            LearnerStatus(LearnerState.WAITING, env_steps=100_000, table_items=config.table.min_size),
            LearnerStatus(LearnerState.WAITING, env_steps=100_000, table_items=config.table.min_size),
        ]
    )
    with contextlib.closing(StatusPoller(config, tmp_path, tuple)) as poller:
        monkeypatch.setattr(poller, "_learner_status", lambda: next(answers))
        polled = [poller.poll() for _ in range(3)]
    assert [status.env_steps_per_s for status in polled] == [0.0, 0.0, 0.0]
    assert polled[-1].earlier_s == 300.0
    assert "new steps" in polled[-1].waiting


def test_poller_keeps_the_counts_of_a_learner_that_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has restored its own: the views and the page fell to 0 meanwhile. Without a checkpoint they are 0."""
    config = RunConfig(cluster=ClusterSettings(replay=("unix:///nowhere",), learner="unix:///nowhere"))
    starting, fresh = LearnerStatus(LearnerState.STARTING), LearnerStatus(LearnerState.WAITING)
    answers = iter([starting, dataclasses.replace(_LEARNER, end="over"), None, starting, fresh])
    with contextlib.closing(StatusPoller(config, tmp_path, tuple)) as poller:
        monkeypatch.setattr(poller, "_learner_status", lambda: next(answers))
        first, trains, gone, starts, waits = (poller.poll() for _ in range(5))
    assert first.learner == starting
    assert gone.learner == trains.learner
    assert starts.learner == dataclasses.replace(
        _LEARNER, state=LearnerState.STARTING, steps_per_s=0.0, wait_fraction=0.0
    )
    assert starts.waiting == "learner is starting"
    assert starts.counting is None
    assert waits.learner == fresh


def test_poller_reads_confirmations(tmp_path: Path) -> None:
    """Of the file that the evaluator writes beside scores.csv."""
    rows = ",".join(COLUMNS), ",".join("" if cell is None else str(cell) for cell in dataclasses.astuple(_SCORE))
    (tmp_path / "confirmations.csv").write_text("\n".join([*rows, ""]))
    config = RunConfig(cluster=ClusterSettings(learner="unix:///nowhere"))
    with contextlib.closing(StatusPoller(config, tmp_path, tuple)) as poller:
        assert poller.poll().confirmations == (_SCORE,)


def test_poller_expects_a_version_a_round_in_lock_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`learner.publish_every` does not count there; 2 actors of 4 environments play 256 steps in a round."""
    made: list[int] = []
    monkeypatch.setattr(poller_module, "WarningTracker", lambda _folder, every, *_: made.append(every))
    lock_step = {
        "run": {"deterministic": True, "round_steps": 32},
        "env": {"id": "CartPole-v1", "num_envs": 4},
        "agent": {"algorithm": "dqn", "network": "mlp"},
        "learner": {"updates_per_env_step": 0.25, "publish_every": 10},
        "launcher": {"actors": 2},
    }
    StatusPoller(load_config(lock_step), tmp_path, tuple).close()
    assert made == [64]


def test_poller_asks_no_service_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be waited for: every run would end seconds later."""
    config = RunConfig(cluster=ClusterSettings(replay=("unix:///nowhere",), learner="unix:///nowhere"))
    rows = {name: ProcessRow(name, Phase.ENDED, None, 0, "", None) for name in ("learner", "replay-0", "replay-1")}
    asked: list[str] = []

    def refuse(client: object) -> NoReturn:
        asked.append(type(client).__name__)
        raise TidemillError("no answer")

    with contextlib.closing(StatusPoller(config, tmp_path, lambda: tuple(rows.values()))) as poller:
        monkeypatch.setattr(LearnerClient, "get_status", refuse)
        monkeypatch.setattr(ReplayClient, "list_tables", refuse)
        assert not poller.poll().learner_answers
        assert asked == []
        rows["replay-1"] = dataclasses.replace(rows["replay-1"], phase=Phase.SERVING)
        poller.poll()
        assert asked == ["ReplayClient"]
        rows["learner"] = dataclasses.replace(rows["learner"], phase=Phase.BACKOFF)  # it may be back in a moment
        poller.poll()
        assert asked == ["ReplayClient", "LearnerClient", "ReplayClient"]


def test_ended_learner_is_as_far_as_the_newest_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trained on after the last question: the view showed 88 % of the steps until the run was over."""
    config = RunConfig(cluster=ClusterSettings(replay=("unix:///nowhere",), learner="unix:///nowhere"))
    phases = [Phase.SERVING]
    monkeypatch.setattr(LearnerClient, "get_status", lambda _: _LEARNER)
    scores = ScoreLog(tmp_path / "scores.csv")
    scores.append(_SCORE)
    processes = lambda: (ProcessRow("learner", phases[0], None, 0, "", None),)  # noqa: E731
    with contextlib.closing(StatusPoller(config, tmp_path, processes)) as poller:
        assert poller.poll().learner == _LEARNER
        phases[0] = Phase.ENDED
        assert poller.poll().learner == _LEARNER  # the score is of older parameters
        scores.append(dataclasses.replace(_SCORE, learner_steps=6_300, env_steps=25_200, params_version=63))
        expected = dataclasses.replace(_LEARNER, learner_steps=6_300, env_steps=25_200, params_version=63)
        assert poller.poll().learner == poller.learner == expected


def test_snapshot_measures_the_way_to_the_nearest_limit() -> None:
    """24,000 of 100,000 decisions, 6,000 of 10,000 steps: 60 %; without limits there is no way to measure."""
    assert _STATUS.fraction(RunSettings(max_env_steps=100_000, max_learner_steps=10_000)) == 0.6
    assert _STATUS.fraction(RunSettings()) == 0.0
    assert _STATUS.fraction(RunSettings(max_learner_steps=10)) == 1.0


def test_usage_is_the_share_of_a_core_since_the_last_look(tmp_path: Path) -> None:
    """Utime 250 and stime 50 ticks more, whatever the process is called; memory in pages."""
    meter = UsageMeter(tmp_path)
    stat = tmp_path / "7" / "stat"
    stat.parent.mkdir()
    rest = "S 1 1 1 0 -1 0 0 0 0 0 {utime} {stime} 0 0 20 0 1 0 100 1000 25"
    stat.write_text("7 (a b) c) " + rest.format(utime=100, stime=100))
    first = meter.read(7)
    stat.write_text("7 (a b) c) " + rest.format(utime=350, stime=150))
    second = meter.read(7)
    assert first is not None
    assert second is not None
    assert first.cpu_fraction == 0.0
    assert second.cpu_fraction > 0.0
    assert second.memory_bytes == 25 * os.sysconf("SC_PAGE_SIZE")
    assert meter.read(8) is None
    assert meter.read(None) is None


def test_live_view_without_rich_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has none; the other views need none."""
    monkeypatch.delitem(sys.modules, "tidemill.services.launcher.view.live")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    live, plain = (RunConfig(launcher=LauncherSettings(view=view)) for view in ("live", "plain"))
    with pytest.raises(ConfigError, match=naming("rich.console", how_to_install("learn"))):
        make_view(live, io.StringIO())
    assert isinstance(make_view(plain, io.StringIO()), PlainView)
