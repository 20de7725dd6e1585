"""The examples, trained for a moment by the whole cluster, from their folder as a user's working directory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.support.documented import run_example
from tests.support.launched import BOUND_S, ROOT, Launched, launched
from tidemill.programs.cluster import Cluster
from tidemill.scores import read_scores

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
_SHORT = (
    *("--run.max-learner-steps", "150", "--run.target-return", "none", "--table.min-size", "100"),
    *("--agent.batch-size", "16"),
    *("--evaluator.episodes", "2", "--evaluator.num-envs", "2", "--evaluator.no-video", "--launcher.view", "plain"),
    *("--learner.tensorboard-every-s", "0.1"),
)
_BOTH = (
    *("--learner.callbacks", "callbacks:JsonLines", "--evaluator.callbacks", "callbacks:JsonLines"),
    *("--evaluator.min-interval-s", "0.1"),
)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples alone, outside the repository."""
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def _train(folder: Path, *arguments: str) -> Launched:
    """Return `tidemill train`, ended."""
    with launched("train", *arguments, cwd=folder) as command:
        command.wait(2 * BOUND_S)
    return command


@pytest.mark.parametrize("config", _EXAMPLES, ids=[file.stem for file in _EXAMPLES])
def test_example_trains(config: Path, examples: Path) -> None:
    """150 updates with every module from the working directory; curves and events of learner and evaluator are there.

    Losses, values and norms of gradients are finite; actors, learner and evaluator found the same modules.
    """
    done = _train(examples, "--config", config.name, *_SHORT, *_BOTH)
    assert done.process.returncode == 0, done.output
    (folder,) = (examples / "runs").iterdir()
    assert json.loads((folder / "result.json").read_text())["learner_steps"] == 150
    events = _events(folder, "learner")
    updates = [event for event in events if event["event"] == "update"]
    assert updates[-1]["step"] == 150
    assert {"loss", "q"} <= updates[-1].keys()
    published = [int(str(event["version"])) for event in events if event["event"] == "publish"]
    assert published == sorted(set(published))
    assert published[-1] >= 2
    evaluated = [event for event in _events(folder, "evaluator") if event["event"] == "evaluation"]
    assert [event["params_version"] for event in evaluated] == [
        score.params_version for score in read_scores(folder / "scores.csv")
    ]
    tags = _tags(folder / "tensorboard" / "learner")
    assert {"learner/loss", "learner/q", "learner/steps_per_s"} <= tags
    logs = "".join(file.read_text() for file in (folder / "logs").iterdir())
    assert "callback failed" not in logs


def test_wrong_name_is_told_before_anything_starts(examples: Path) -> None:
    """With exit code 2 and the nearest name, not by a learner that is restarted again and again."""
    for option, message in (
        (("--agent.loss", "losses:log_cos"), "losses has no 'log_cos'; did you mean 'log_cosh'"),
        (("--learner.callbacks", "callbacks:JsonLine"), "callbacks has no 'JsonLine'; did you mean 'JsonLines'"),
        (("--env.vector", "batched_env:make_vek"), "batched_env has no 'make_vek'; did you mean 'make_vec'"),
    ):
        done = _train(examples, "--config", "own_loss.yaml", *option)
        assert done.process.returncode == 2, done.output
        assert message in done.output
        assert not (examples / "runs" / "own-loss" / "checkpoints").exists()


def test_cluster_does_what_its_docstring_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started, watched and waited for from Python."""
    monkeypatch.chdir(tmp_path)
    count, differences = run_example(Cluster.__doc__ or "", "Cluster", {})
    assert differences == ""
    assert count >= 3
    assert os.listdir(tmp_path / "runs") == ["example"]


def _events(folder: Path, service: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / f"events-{service}.jsonl").read_text().splitlines()]


def _tags(folder: Path) -> set[str]:
    events = [event for file in sorted(folder.glob("events.*")) for event in EventFileLoader(str(file)).Load()]
    return {value.tag for event in events for value in event.summary.value}
