"""`tidemill evaluate` on the folder of a run that has ended."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.closed_folder import deny
from tests.support.publishing import publish
from tests.unit.evaluator.blobs import blob_of
from tidemill.config.load import write_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.config.services import EvaluatorSettings
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.settings import EnvSettings
from tidemill.errors import EnvFailed
from tidemill.params.version import ParamsMetadata, Version
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.eval_report import make_report
from tidemill.services.evaluator.offline import main
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.paramserver.version_store import VersionStore


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run with two versions, neither tagged, and a protocol of 3 and 5 episodes."""
    config = EvaluatorConfig(
        run=RunSettings(name="run", root=str(tmp_path)),
        env=EnvSettings("Pendulum-v1", max_evaluation_steps=10),
        agent=SACConfig(hidden_sizes=(4,)),
        evaluator=EvaluatorSettings(episodes=3, test_episodes=5, num_envs=2, video=False),
    )
    folder = tmp_path / "run"
    folder.mkdir()
    write_document(config, folder / "config.yaml")
    store = VersionStore(
        folder / "params", keep_versions=20, max_blob_bytes=100_000, max_tags=10, max_fetch_bytes=100_000
    )
    for seed in (1, 2):
        publish(store, blob_of(config, seed))
    store.close()
    return folder


def _document(run: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / "evaluations" / name).read_text())
    return document


def test_test_of_a_run_is_printed_and_written_with_every_episode(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest version plays the protocol's 5 test episodes on seeds the run never used."""
    assert main([str(run)]) == 0
    document = _document(run, "version-2-greedy-seed-10010000-episodes-5.json")
    returns = document["returns"]
    assert len(returns) == document["episodes"] == 5
    assert document["lengths"] == [10] * 5
    assert document["seeds"] == list(range(10_010_000, 10_010_005))
    assert document["mean"] == pytest.approx(sum(returns) / 5)
    assert (document["min"], document["max"]) == (min(returns), max(returns))
    assert document["median"] == sorted(returns)[2]
    assert (document["params_version"], document["policy"], document["epsilon"]) == (2, "greedy", 0.0)
    assert (document["human_normalised"], document["noop_max"], document["max_steps"]) == (None, None, 10)
    printed = capsys.readouterr().out
    assert f"mean {document['mean']:.2f}" in printed
    assert f"median {document['median']:.2f}" in printed


def test_report_on_a_run_that_was_renamed_has_its_present_name(run: Path, tmp_path: Path) -> None:
    """Another run may have the name in its settings, as after `tidemill train --fresh`."""
    moved = run.rename(tmp_path / "run-1")
    assert main([str(moved), "--episodes", "1"]) == 0
    assert _document(moved, "version-2-greedy-seed-10010000-episodes-1.json")["run"] == "run-1"


def test_settings_may_lie_outside_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a cluster that no launcher started has no config.yaml: it is named."""
    (run / "config.yaml").rename(tmp_path / "elsewhere.yaml")
    assert main([str(run), "--config", str(tmp_path / "elsewhere.yaml")]) == 0
    assert _document(run, "version-2-greedy-seed-10010000-episodes-5.json")["episodes"] == 5
    assert main([str(run), "--config", str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err


def test_protocol_can_be_changed_on_the_command_line(run: Path, tmp_path: Path) -> None:
    """Episodes, version, seed, policy, slots and file; two slots or three change no episode."""
    asked = ["--episodes", "4", "--tag", "1", "--seed", "7"]
    files = [tmp_path / name for name in ("two.json", "three.json", "sampled.json")]
    for file, options in zip(files, (["--num-envs", "2"], ["--num-envs", "3"], ["--policy", "sampled"]), strict=True):
        assert main([str(run), *asked, *options, "--output", str(file)]) == 0
    two, three, sampled = (json.loads(file.read_text()) for file in files)
    assert (two["params_version"], two["seeds"]) == (1, [7, 8, 9, 10])
    assert two["returns"] == three["returns"]
    assert sampled["policy"] == "sampled"
    assert sampled["returns"] != two["returns"]
    assert not (run / "evaluations").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--episodes", "0"], "--episodes is 0, allowed: at least 1"),
        (["--num-envs", "0"], "--num-envs is 0, allowed: at least 1"),
        (["--seed", "-1"], "--seed is -1, allowed: 0 or more"),
        (["--epsilon", "0.1"], "evaluator.policy is 'epsilon', allowed for continuous actions"),
        (["--epsilon", "0.1", "--policy", "greedy"], "--epsilon is 0.1, which applies to --policy epsilon only"),
        (["--tag", "good"], "has no tag 'good'"),
        (["--tag", "9"], "9"),
        (["--video", "film.png"], "--video is film.png, allowed: a name that ends in .mp4"),
        (["--video", "film.gif"], "--video is film.gif, allowed: a name that ends in .mp4"),
        (["--video", "film"], "--video is film, allowed: a name that ends in .mp4"),
    ],
)
def test_wrong_wish_is_told_with_its_value(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is not 0, and nothing but one line says what was wrong."""
    assert main([str(run), *options]) != 0
    told = capsys.readouterr()
    assert message in told.err
    assert not told.out


def test_video_that_cannot_be_written_is_told_before_any_episode(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the file and the reason: a folder, also where the pictures go, a file above it, or a name too long."""
    (run / "pictures.png").mkdir()
    for file in (run / "config.yaml" / "film.mp4", run, run / "pictures.mp4", run / ("f" * 300) / "film.mp4"):
        assert main([str(run), "--video", str(file)]) == 2
        assert f"--video cannot be written to {file} (" in capsys.readouterr().err
    assert not (run / "evaluations").exists()


def test_environment_without_pictures_is_told_before_any_episode(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The episodes would have to be played again."""
    monkeypatch.setattr(GymnasiumVectorEnv, "render", lambda *_: None)
    assert main([str(run), "--video", str(run / "films/film.mp4")]) == 1
    told = capsys.readouterr()
    assert "no video: the environment cannot render pictures" in told.err
    assert not told.out


def test_environment_that_fails_once_has_a_score_and_a_video(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of its pictures ends the command only if there are none."""
    reset, resets = GymnasiumVectorEnv.reset, count()

    def reset_failing_once(env: GymnasiumVectorEnv, seed: int) -> NDArray[Any]:
        if next(resets) == 0:
            raise EnvFailed("no answer")
        return reset(env, seed)

    monkeypatch.setattr(GymnasiumVectorEnv, "reset", reset_failing_once)
    assert main([str(run), "--video", str(run / "film.mp4")]) == 0
    assert "mean " in capsys.readouterr().out
    assert (run / "film.mp4").exists()


def test_report_that_cannot_be_written_is_told_before_any_episode(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file and the reason: a folder, a file above it, a name too long, or a file where the reports go."""
    for file in (run / "config.yaml" / "report.json", run, run / ("f" * 300) / "report.json"):
        assert main([str(run), "--output", str(file)]) == 2
        told = capsys.readouterr()
        assert f"the report cannot be written to {file} (" in told.err
        assert not told.out
    (run / "evaluations").touch()
    assert main([str(run)]) == 2
    told = capsys.readouterr()
    assert f"the report cannot be written to {run / 'evaluations'} (" in told.err
    assert not told.out


def test_report_on_an_atari_game_says_how_it_was_played(tmp_path: Path) -> None:
    """Epsilon, no-op starts and sticky actions stand in the document, and its name distinguishes tests."""
    config = EvaluatorConfig(
        env=EnvSettings("ALE/Pong-v5", sticky_actions=0.25),
        agent=DQNConfig(),
        evaluator=EvaluatorSettings(policy="epsilon", epsilon=0.05, noop_max=10),
    )
    version = Version(7, 6, 1, datetime.datetime.now(datetime.UTC), ParamsMetadata("dqn", "ALE/Pong-v5"), ())
    report = make_report(Evaluation(np.array([-3.05]), np.array([900]), (5,)), config, version)
    assert (report.epsilon, report.noop_max, report.sticky_actions) == (0.05, 10, 0.25)
    assert report.score.human_normalised == pytest.approx(0.5)
    assert "human-normalised 50.0 %" in str(report)
    assert report.file_name == "version-7-epsilon-0.05-noops-10-seed-5-episodes-1.json"


def test_report_says_how_many_episodes_failed() -> None:
    """In the document and in a line before the scores, which are those of the rest."""
    version = Version(7, 6, 1, datetime.datetime.now(datetime.UTC), ParamsMetadata("sac", "Pendulum-v1"), ())
    report = make_report(Evaluation(np.array([-3.0]), np.array([9]), (5,), failed=2), EvaluatorConfig(), version)
    assert (report.score.episodes, report.failed_episodes) == (1, 2)
    assert str(report).startswith("2 of 3 episodes are left out: their environment failed\nmean -3.00")


def test_report_with_failed_episodes_replaces_none_of_another_test(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has the first seed and the episodes that were asked for, not those of the episodes that are left."""
    monkeypatch.setattr(EpisodeRunner, "run", lambda *_: Evaluation(np.zeros(3), np.full(3, 9), (8, 9, 10), failed=2))
    assert main([str(run), "--seed", "7"]) == 0
    assert [file.name for file in (run / "evaluations").iterdir()] == ["version-2-greedy-seed-7-episodes-5.json"]


@pytest.mark.parametrize("failed, code", [(2, 0), (3, 1)])
def test_test_whose_episodes_mostly_failed_has_no_score(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failed: int, code: int
) -> None:
    """Of 5 episodes 2 may fail; with 3 the command says so and writes no report."""
    left = 5 - failed
    evaluation = Evaluation(np.full(left, -3.0), np.full(left, 9), tuple(range(left)), failed)
    monkeypatch.setattr(EpisodeRunner, "run", lambda *_: evaluation)
    assert main([str(run)]) == code
    printed = capsys.readouterr()
    assert ("mean -3.00" in printed.out, (run / "evaluations").exists()) == (not code, not code)
    assert ("the environment failed in 3 of 5 episodes; at most half may fail" in printed.err) == bool(code)


def test_folder_of_no_run_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a config.yaml there is nothing to test; the runs beside it are named."""
    assert main([str(run.parent / "none")]) != 0
    told = capsys.readouterr().err
    assert f"none is not a run: it has no config.yaml; runs: {run}; or pass the settings of this one" in told


def test_folder_that_another_user_closed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, not by a traceback."""
    deny(monkeypatch, closed := tmp_path / "closed")
    assert main([str(closed / "run")]) in (1, 2)
    said = capsys.readouterr().err
    assert (said.count("\n"), str(closed / "run") in said) == (1, True)


def test_command_line_is_read_before_torch_is_imported() -> None:
    """`--help` and a wrong option are answered without the seconds that torch takes."""
    script = """
import sys
from tidemill.services.evaluator.offline import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    print(ended.code, "torch" in sys.modules)
"""
    for option, code in (("--help", 0), ("--episode-count", 2)):
        command = [sys.executable, "-c", script, option]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.splitlines()[-1] == f"{code} False"


def test_no_op_starts_of_what_is_no_game_are_refused_by_the_option(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made."""
    assert main([str(run), "--noop-max", "0"]) == 2
    assert "--noop-max is 0, allowed: nothing with env.id 'Pendulum-v1'" in capsys.readouterr().err
