"""Whole runs whose environments fail: again and again in every way, and at once."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.support.forked_service import fork_read
from tests.support.launched import ROOT, TRAINED_S, launched
from tests.support.waiting import crowd
from tidemill.services.launcher.view.curves import by_kind, env_failures

pytestmark = [pytest.mark.process, pytest.mark.timeout(TRAINED_S + 600)]

_FAULTY = (
    *("--env.id", "tests.support.faulty_envs:FaultyCartPole", "--evaluator.no-video"),
    *("--actor.log-every-s", "1"),  # an actor adds to its curves as often, from which its failures are read
)
_ISOLATED = (
    "--env.isolate",
    "--env.step-timeout-s",
    "1",
    "--env.reset-timeout-s",
    "20",
    "--env.max-memory-mib",
    "1000",
    *("--evaluator.num-envs", "4", "--evaluator.episodes", "8", "--evaluator.confirm-episodes", "16"),  # a process each
)


@pytest.mark.learning
@pytest.mark.parametrize(
    "preset, how, options",
    [
        ("cartpole_ppo", "each", ("--env.on-failure", "drop")),
        ("cartpole_dqn", "fatal", _ISOLATED),
    ],
)
def test_run_whose_environments_fail_in_every_way_reaches_its_target(
    preset: str, how: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """CartPole is solved, although an environment fails every 300 steps in training, and every 1,200 in evaluation."""
    faults = ("--env.kwargs", "how", how, "every", "300")
    limits = ("--run.target_return", "150", "--run.max_env_steps", "100000", "--run.max_wall_s", "0")
    config = ("--config", str(ROOT / "configs" / f"{preset}.yaml"), "--run.root", str(tmp_path))
    with launched("train", *config, *_FAULTY, *faults, *options, *limits) as cluster:
        assert cluster.wait(TRAINED_S) == 0, cluster.output
        assert cluster.children() == {}
    folder = tmp_path / preset
    result = json.loads((folder / "result.json").read_text())
    assert result["solved"], result
    assert {"raised", "invalid"} <= by_kind(env_failures(folder)).keys()
    assert not re.search(r"actor-\d .*restarting in", cluster.output)


def test_environment_that_raises_at_each_first_step_ends_the_run(config_file: Path, tmp_path: Path) -> None:
    """Within seconds of the actor's start, with the traceback, and without starting the actor once more."""
    faults = ("--env.kwargs", "every", "1", "training_only", "true")
    with launched("train", "--config", str(config_file), *_FAULTY, *faults) as cluster:
        cluster.until("actor-0 is ready")
        began_s = time.monotonic()
        assert cluster.wait() == 1
    assert time.monotonic() - began_s < 60 * crowd()  # 6 s of pauses, and the end of a run
    assert "RuntimeError: the simulator broke" in cluster.output
    assert "7 restarts within 200 steps (env.max_restarts)" in cluster.output
    assert "restarting in" not in cluster.output


def test_policy_stop_ends_the_run_at_the_first_failure(config_file: Path) -> None:
    """The message names the failure and the setting."""
    faults = ("--env.kwargs", "every", "50", "training_only", "true", "--env.on-failure", "stop")
    with launched("train", "--config", str(config_file), *_FAULTY, *faults) as cluster:
        assert cluster.wait() == 1
    assert "env.on_failure is 'stop'" in cluster.output


_STUCK = """
import time, gymnasium
def make(training):
    if training:
        time.sleep(600)
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.parametrize("is_deterministic", ["false", "true"])
def test_environment_that_an_actor_cannot_make_in_time_is_named(
    config_file: Path, tmp_path: Path, is_deterministic: str
) -> None:
    """Long before `launcher.start_timeout_s`, with the line of the constructor that does not return."""
    (tmp_path / "stuck.py").write_text(_STUCK)
    limits = ["--env.step-timeout-s", "1", "--launcher.max-restarts", "0", "--run.deterministic", is_deterministic]
    with launched("train", "--config", str(config_file), "--env.id", "stuck:make", *limits, cwd=tmp_path) as cluster:
        assert cluster.wait() == 1
    assert re.search(
        r"env\.id 'stuck:make' has not returned from the constructor for 1\.\d s \(stuck\.py, line 5\)", cluster.output
    )


@pytest.mark.parametrize("service, words", [("evaluator", ()), ("evaluator", _ISOLATED), ("learner", ())])
def test_environment_that_a_service_cannot_make_in_time_is_named(
    service: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """A service that only asks an environment for its spaces makes it, too. Its restarts are counted."""
    hangs = ("--env.id", "tests.support.envs:hanging", "--env.kwargs", "method", "__init__", "call", "1")
    limits = ("--env.step-timeout-s", "1", "--env.reset-timeout-s", "2")
    settings = (*words, *hangs, *limits, "--agent.algorithm", "dqn", "--run.root", str(tmp_path))
    process = fork_read(f"tidemill.services.{service}", settings)
    try:
        said, _ = process.communicate(200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert re.search(r"hanging' has not returned from the constructor for 2\.\d s \(envs\.py, line \d+\)", said)
