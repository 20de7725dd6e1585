"""`tidemill status` and `ctl` where no learner answers, or one that starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.closed_folder import deny
from tests.support.naming import naming
from tidemill.config.load import write_document
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import Unavailable
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.scores import Score
from tidemill.services.evaluator.csv_logs import ScoreLog
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.launcher.commands import control
from tidemill.services.launcher.commands.control import ctl, status


@pytest.mark.parametrize("command, words", [(status, []), (ctl, ["pause"])])
def test_learner_that_does_not_answer_is_named(command: Callable[[Sequence[str]], int], words: list[str]) -> None:
    """As one of a cluster of containers that is starting; what gRPC says comes last."""
    with pytest.raises(Unavailable, match=naming("learner 127.0.0.1:1")):
        command([*words, "--learner", "127.0.0.1:1"])


@pytest.mark.parametrize("command, words", [(status, []), (ctl, ["pause"])])
def test_learner_whose_socket_is_elsewhere_is_not_said_to_start(
    command: Callable[[Sequence[str]], int], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine that has the run's folder, too, or in a folder that another user alone may enter."""
    theirs, missing = tmp_path / "theirs", tmp_path / "missing"
    deny(monkeypatch, theirs)
    for folder, why in ((theirs, "another user"), (missing, "there is no")):
        with pytest.raises(Unavailable, match=naming(f"{folder}/learner.sock", why)) as raised:
            command([*words, "--learner", f"unix://{folder}/learner.sock"])
        assert "starting" not in str(raised.value)


def test_learner_that_starts_is_not_said_to_start_fresh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may restore a checkpoint yet."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.STARTING))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    assert status(["--learner", "127.0.0.1:1"]) == 0
    shown = capsys.readouterr().out
    assert "nothing yet" in shown
    assert "steps" not in shown  # nor 0 for counts that it may restore


def test_status_does_not_call_every_wait_one_for_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of several learners also waits for the others; more actors would not help."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.TRAINING, wait_fraction=0.6))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    assert status(["--learner", "127.0.0.1:1"]) == 0
    (line,) = (line.split() for line in capsys.readouterr().out.splitlines() if "waits" in line)
    assert line == ["waits", "60%", "of", "the", "time"]


@pytest.mark.parametrize("addresses, shown", [(("unix:///replay.sock",), ["replay"]), (("a:1", "b:1"), [])])
def test_status_shows_the_address_of_the_only_replay_server(
    addresses: tuple[str, ...],
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The learner lists several shards with theirs; of a run that has just ended the rest is shown."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.TRAINING))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    words = [str(tmp_path), "--learner", "127.0.0.1:1"]
    assert status(words) == 0
    before = capsys.readouterr().out.splitlines()
    write_document(RunConfig(cluster=ClusterSettings(replay=addresses)), tmp_path / "cluster.yaml")
    assert status(words) == 0
    more = [line.split() for line in capsys.readouterr().out.splitlines() if line not in before]
    assert more == [[name, addresses[0]] for name in shown]


def test_status_during_the_last_evaluation_shows_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learner has ended by then. Without an evaluation its absence is an error."""
    words = [str(tmp_path), "--learner", "127.0.0.1:1"]
    progress = ProgressFile(tmp_path)
    progress.write(7, 3, 30)
    assert status(words) == 0
    assert "evaluating version 7: 3 of 30 episodes; the learner has ended" in capsys.readouterr().out
    progress.clear()
    with pytest.raises(Unavailable, match="or have ended while the last version is evaluated"):
        status(words)


def test_status_shows_the_best_score_that_fresh_episodes_did_not_refute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version that was confirmed comes before all others; the target is that of the run."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.TRAINING))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    for version, mean in ((8, 210.0), (12, 195.0), (14, 190.0)):
        ScoreLog(tmp_path / "scores.csv").append(Score(1.0, 0, 0, version, 5, mean, 0.0, mean, mean, mean, 1.0))
    for version, mean in ((8, 150.0), (14, 180.0)):
        ScoreLog(tmp_path / "confirmations.csv").append(Score(1.0, 0, 0, version, 5, mean, 0.0, mean, mean, mean, 1.0))
    for target, best in ((200.0, "195.0 (version 12)"), (180.0, "190.0 (version 14)")):
        write_document(RunConfig(run=RunSettings(target_return=target)), tmp_path / "config.yaml")
        assert status([str(tmp_path), "--learner", "127.0.0.1:1"]) == 0
        assert f"best score      {best}" in capsys.readouterr().out


def test_status_shows_what_actors_have_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The return of their episodes, and failures of their environments with the logs that have the reasons."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.TRAINING))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    (tmp_path / "curves").mkdir()
    for actor, kind, episode_return in (("actor-0", "raised", 3.0), ("actor-1", "hung", 6.0)):
        point = {"time": 1.0, "actor/episode_return": episode_return, f"actor/env_failures/{kind}": 2.0}
        (tmp_path / "curves" / f"{actor}.jsonl").write_text(json.dumps(point) + "\n")
    assert status([str(tmp_path), "--learner", "127.0.0.1:1"]) == 0
    rows = [line.split(None, 2) for line in capsys.readouterr().out.splitlines()]
    assert ["training", "return", "4.5"] in rows
    reasons = f"2 hung, 2 raised; reasons are in {tmp_path / 'logs'}/actor-*.log"
    assert ["environment", "failures", reasons] in rows
