"""`tidemill status` and `ctl` where no learner answers, or one that starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.naming import naming
from tidemill.config.load import write_document
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import Unavailable
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.launcher.commands import control
from tidemill.services.launcher.commands.control import ctl, status


@pytest.mark.parametrize("command, words", [(status, []), (ctl, ["pause"])])
def test_learner_that_does_not_answer_is_named(command: Callable[[Sequence[str]], int], words: list[str]) -> None:
    """As one of a cluster of containers that is starting; what gRPC says comes last."""
    with pytest.raises(Unavailable, match=naming("learner 127.0.0.1:1")):
        command([*words, "--learner", "127.0.0.1:1"])


def test_learner_that_starts_is_not_said_to_start_fresh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may restore a checkpoint yet."""
    client = SimpleNamespace(get_status=lambda: LearnerStatus(LearnerState.STARTING))
    monkeypatch.setattr(control, "learner_at", lambda _: nullcontext(client))
    assert status(["--learner", "127.0.0.1:1"]) == 0
    assert "nothing yet" in capsys.readouterr().out


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
