"""What is printed when a run has ended, and when it is resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml

from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.config.services import EvaluatorSettings
from tidemill.curves import ENV_FAILURES, SideCurves
from tidemill.envs.settings import EnvSettings
from tidemill.learner.status import LearnerStatus
from tidemill.programs.result import RunResult
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.scores import Score
from tidemill.services.evaluator.csv_logs import ScoreLog
from tidemill.services.launcher.commands.summary import describe_restored, describe_result, summarise
from tidemill.services.launcher.run.continuation import check_limits
from tidemill.services.launcher.supervise.supervisor import Outcome
from tidemill.services.learner.checkpoint.format import Checkpoint, encode


def test_summary_says_how_it_went_and_where_the_files_are(tmp_path: Path) -> None:
    """Only what is there is listed."""
    (tmp_path / "scores.csv").write_text("x")
    (tmp_path / "logs").mkdir()
    result = {
        "solved": True,
        "target_return": 200.0,
        "wall_s": 118.4,
        "env_steps": 150_000,
        "mean_return": 214.3,
        "episodes": 25,
        "confirmed_mean": 207.9,
        "confirm_episodes": 100,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    said = "\n".join(summarise(tmp_path, Outcome(0, "finished")))
    assert "solved after 118 s and 150,000 env steps: mean return 214.3 over 25 episodes" in said
    assert "207.9 over 100 fresh episodes" in said
    assert "scores.csv" in said
    assert "logs " not in said
    assert f"tidemill evaluate {tmp_path}" in said
    assert f"tidemill resume {tmp_path} --run.target-return none" in said  # with its target it would end at once


def test_summary_of_a_run_that_is_given_from_within_begins_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidemill resume .` is typed in it."""
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path.name}: finished" in summarise(Path("."), Outcome(0, "finished"))


def test_summary_of_a_run_that_ended_at_a_limit_says_how_to_continue_beyond_it(tmp_path: Path) -> None:
    """With the same limit it would end at once."""
    (tmp_path / "scores.csv").write_text("x")
    ends = {"max_env_steps (6,000)": "max-env-steps 12000", "max_wall_s (1e+06)": "max-wall-s 2000000"}
    for reached, option in ends.items():
        result = {"solved": False, "wall_s": 1.0, "env_steps": 6172, "reason": f"run.{reached} reached"}
        (tmp_path / "result.json").write_text(json.dumps(result))
        said = "\n".join(summarise(tmp_path, Outcome(0, "finished")))
        assert f"tidemill resume {tmp_path} --run.{option}  continue training as long again" in said


@pytest.mark.parametrize(
    "limits, option",
    [
        ({"max_wall_s": 60}, "--run.max-wall-s 211"),
        ({"max_env_steps": 500}, "--run.max-env-steps 1100"),
        ({"max_learner_steps": 20}, "--run.max-learner-steps 45"),
    ],
)
def test_summary_of_a_run_far_beyond_its_limit_names_one_that_resume_takes(
    tmp_path: Path, limits: dict[str, int], option: str
) -> None:
    """The last evaluation of a short run can take longer than its training, and actors play a while beyond a limit."""
    [(name, limit)] = limits.items()
    result = {"solved": False, "wall_s": 70.0, "env_steps": 600, "reason": f"run.{name} ({limit}) reached"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "wall_clock.json").write_text(json.dumps({"wall_s": 150.2}))
    ScoreLog(tmp_path / "scores.csv").append(Score(1.0, 25, 600, 3, 5, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0))
    said = "\n".join(summarise(tmp_path, Outcome(0, "finished")))
    assert f"{option}  continue training as long again" in said
    before = load_config({"run": limits})
    check_limits(before, load_config({"run": {name: int(option.split()[1])}}), tmp_path)


def test_summary_names_no_command_that_only_simulators_could_carry_out(tmp_path: Path) -> None:
    """Nothing here can play the policy of a run whose environment only its clients have."""
    (tmp_path / "scores.csv").write_text("x")
    (tmp_path / "config.yaml").write_text("env: {id: chase, spaces: {observation: {shape: [3], dtype: float32}}}")
    (tmp_path / "result.json").write_text(json.dumps({"solved": True, "wall_s": 1.0, "env_steps": 1, "reason": "x"}))
    said = "\n".join(summarise(tmp_path, Outcome(0, "finished")))
    assert "tidemill export" in said
    assert "tidemill evaluate" not in said


def test_summary_of_an_interrupted_run_says_how_to_look_at_what_it_has_learned(tmp_path: Path) -> None:
    """There is no result, and a trained policy, which can be evaluated and exported as that of a finished run."""
    (tmp_path / "scores.csv").write_text("x\n1\n")
    first = "\n".join(summarise(tmp_path, Outcome(0, "stopped as asked")))
    assert f"tidemill resume {tmp_path}" in first
    assert "evaluate" not in first
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "0000000002.json").touch()
    said = "\n".join(summarise(tmp_path, Outcome(0, "stopped as asked")))
    for command in ("evaluate", "resume", "export"):
        assert f"tidemill {command} {tmp_path}" in said
    assert "play fresh episodes with the best policy" in said
    (tmp_path / "scores.csv").write_text("x\n")
    assert "with the newest policy" in "\n".join(summarise(tmp_path, Outcome(0, "stopped as asked")))


def test_summary_says_that_the_last_checkpoint_failed(tmp_path: Path) -> None:
    """Whoever continues must know where. One that was written after the last status counts."""
    learner = LearnerStatus(checkpoint_error="cannot write x: No space left on device")
    failed = "The last checkpoint failed: cannot write x: No space left on device. A resumed run starts from "

    def said() -> str:
        return "\n".join(summarise(tmp_path, Outcome(0, "stopped as asked"), learner))

    assert f"{failed}scratch: there is no earlier one." in said()
    counters = {"learner_steps": 4_558}
    checkpoint = Checkpoint("dqn", {}, "", counters, {"weight": torch.zeros(1)}, {})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000001-00000001.safetensors").write_bytes(encode(checkpoint))
    assert "checkpoint failed" not in said()
    learner = replace(learner, checkpoint_steps=4_558)
    assert f"{failed}the previous one, of step 4,558." in said()


def test_summary_says_that_environments_failed_and_why(tmp_path: Path) -> None:
    """Counts of all actors, and the reason of the newest."""
    for actor, time_s, kinds in (("actor-0", 9.0, {"raised": 3.0}), ("actor-1", 5.0, {"hung": 2.0, "raised": 1.0})):
        curves = SideCurves(tmp_path, actor)
        scalars = {f"actor/{ENV_FAILURES}{kind}": count for kind, count in kinds.items()}
        texts = {"actor/last_env_failure": f"the simulator of {actor} broke"}
        with mock.patch("time.time", return_value=time_s):
            curves.write(scalars, env_steps=0, learner_steps=0, texts=texts)
        curves.close()
    said = summarise(tmp_path, Outcome(0, "finished"))
    failed = "Environments of the actors failed (2 hung, 4 raised); the last one: the simulator of actor-0 broke. See "
    assert f"{failed}{tmp_path / 'logs'}/actor-*.log" in list(takewhile(bool, said[1:]))  # also in the quiet view


def test_summary_says_that_actors_made_no_step(tmp_path: Path) -> None:
    """Not if steps were made that nothing has stored yet. A run without actors has nobody to make one."""

    def said(env_steps: int) -> str:
        result = {"solved": False, "wall_s": 1.0, "env_steps": env_steps, "reason": "run.max_wall_s (1) reached"}
        (tmp_path / "result.json").write_text(json.dumps(result))
        return "\n".join(summarise(tmp_path, Outcome(0, "finished")))

    assert "no step" not in said(0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "actor-0.log").touch()
    assert f"The actors made no step. See {tmp_path / 'logs'}/actor-*.log" in said(0)
    assert "no step" not in said(1)
    for steps_per_s, has_none in ((0.0, True), (0.9, False)):
        curves = SideCurves(tmp_path, "actor-0")
        curves.write({"actor/env_steps_per_s": steps_per_s}, env_steps=0, learner_steps=0)
        curves.close()
        assert ("no step" in said(0)) is has_none


def test_summary_of_a_failed_run_points_at_the_logs(tmp_path: Path) -> None:
    """No result, and a reason."""
    said = "\n".join(summarise(tmp_path, Outcome(1, "learner ended with exit code 1")))
    assert "learner ended with exit code 1" in said
    assert f"see {tmp_path / 'logs'}" in said
    assert "evaluate" not in said
    assert "resume" not in said
    assert "It never trained" in said


def test_resume_says_what_comes_back_and_what_does_not(tmp_path: Path) -> None:
    """A checkpoint without a log of the tables, then with one, and a folder with nothing."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000001-00000003.safetensors").touch()
    said = "\n".join(describe_restored(tmp_path, RunConfig()))
    assert "checkpoint-000001-00000003" in said
    assert "none were published" in said
    assert "replay       not restored" in said
    assert "environments not restored" in said
    (tmp_path / "replay" / "0").mkdir(parents=True)
    (tmp_path / "replay" / "0" / "00000001.log").touch()
    assert "from the log" in "\n".join(describe_restored(tmp_path, RunConfig()))
    assert "starts from scratch" in "\n".join(describe_restored(tmp_path / "nothing", RunConfig()))


def test_resume_names_the_settings_that_change(tmp_path: Path) -> None:
    """Those of options, or none: the folder of the run may be another one than when it was trained."""
    before = load_config({"run": {"root": "elsewhere"}, "agent": {"learning_rate": 0.5}})
    now = load_config({"run": {"root": str(tmp_path)}, "agent": {"learning_rate": 0.25}})
    assert "  settings     agent.learning_rate 0.25 (it was 0.5)" in describe_restored(tmp_path, now, before)
    assert not any(line.startswith("  settings") for line in describe_restored(tmp_path, now, now))


def test_resume_names_the_best_score_that_fresh_episodes_did_not_refute(tmp_path: Path) -> None:
    """It is that of the version tagged best."""
    for version, mean in ((8, 210.0), (12, 195.0)):
        ScoreLog(tmp_path / "scores.csv").append(Score(1.0, 0, 0, version, 5, mean, 0.0, mean, mean, mean, 1.0))
    ScoreLog(tmp_path / "confirmations.csv").append(Score(1.0, 0, 0, 8, 5, 150.0, 0.0, 150.0, 150.0, 150.0, 1.0))
    assert "2 evaluations, best mean 195.0" in "\n".join(describe_restored(tmp_path, RunConfig()))
    assert RunResult(0, tmp_path).best_score == 195.0


@pytest.mark.parametrize(
    "env, line",
    [
        (
            {"kwargs": {"drag": 0.3}},
            "env.kwargs.drag 0.3 (it was None); scores before and after may not be comparable: the environment changed",
        ),
        ({"num_envs": 2}, "env.num_envs 2 (it was 16)"),
    ],
)
def test_resume_warns_that_scores_of_another_environment_may_differ(
    tmp_path: Path, env: dict[str, Any], line: str
) -> None:
    """The best version stays the best by scores of before; settings that change no episode are without a warning."""
    assert f"  settings     {line}" in describe_restored(tmp_path, load_config({"env": env}), RunConfig())


def test_resume_warns_of_games_that_begin_otherwise(tmp_path: Path) -> None:
    """Breakout without FIRE is a still picture."""
    before, now = (load_config({"env": {"id": "ALE/Breakout-v5", "fire_reset": each}}) for each in (True, False))
    assert "the environment changed" in "\n".join(describe_restored(tmp_path, now, before))


def _evaluated(noops: int = 30, agent_epsilon: float = 0.01, **evaluator: Any) -> RunConfig:  # noqa: ANN401 - any setting
    return RunConfig(
        env=EnvSettings("ALE/Pong-v5", noop_max=noops),
        agent=DQNConfig(evaluation_epsilon=agent_epsilon),
        evaluator=EvaluatorSettings(**evaluator),
    )


@pytest.mark.parametrize(
    "before, now, warns",
    [
        (_evaluated(), _evaluated(source="simulators"), True),
        (_evaluated(), _evaluated(policy="epsilon"), True),
        (_evaluated(policy="epsilon"), _evaluated(policy="epsilon", epsilon=0.05), True),
        (_evaluated(policy="epsilon"), _evaluated(policy="epsilon", agent_epsilon=0.05), True),
        (
            _evaluated(policy="epsilon", epsilon=0.05),
            _evaluated(policy="epsilon", epsilon=0.05, agent_epsilon=0.5),
            False,
        ),
        (_evaluated(), _evaluated(epsilon=0.05, agent_epsilon=0.5), False),
        (_evaluated(), _evaluated(noop_max=0), True),
        (_evaluated(), _evaluated(noops=0), True),
        (_evaluated(noop_max=9), _evaluated(noop_max=9, noops=0), False),
    ],
)
def test_resume_warns_of_another_way_of_evaluating(
    tmp_path: Path, before: RunConfig, now: RunConfig, warns: bool
) -> None:
    """Only where the settings that changed come into effect."""
    said = "\n".join(describe_restored(tmp_path, now, before))
    assert ("may not be comparable: the way of evaluating changed" in said) is warns


@pytest.mark.parametrize(
    "result, line",
    [
        (
            {"mean_return": -417.0, "best_mean": -84.2, "best_version": 7, "episodes": 5},
            "ended after 15 s and 1,056 env steps (run.max_wall_s (15) reached): mean return -417.0 over 5 episodes; "
            "best -84.2, version 7",
        ),
        (
            {"mean_return": None},
            "ended after 15 s and 1,056 env steps (run.max_wall_s (15) reached): not evaluated",
        ),
    ],
)
def test_closing_line_says_why_a_run_ended_and_what_was_best(result: dict[str, object], line: str) -> None:
    """A last evaluation below the best one, or none at all, hides neither."""
    shared = {"solved": False, "reason": "run.max_wall_s (15) reached", "wall_s": 15.2, "env_steps": 1056}
    assert describe_result(shared | result) == line


def test_closing_line_has_the_time_and_the_steps_of_the_run(tmp_path: Path) -> None:
    """The version that was evaluated last may be much older."""
    result = {"solved": False, "reason": "run.max_wall_s (15) reached", "wall_s": 10.5, "env_steps": 0}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "wall_clock.json").write_text(json.dumps({"wall_s": 19.7}))
    learner = LearnerStatus(env_steps=4200)
    said = summarise(tmp_path, Outcome(0, "finished"), learner)
    assert "ended after 20 s and 4,200 env steps (run.max_wall_s (15) reached): not evaluated" in said
    result["trained_env_steps"] = 4300  # after the learner was asked last
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert "and 4,300 env steps" in "\n".join(summarise(tmp_path, Outcome(0, "finished"), learner))


@pytest.mark.parametrize(
    "settings, said, unsaid",
    [
        ("launcher: {actors: 0}\ninference: {simulators: 4}", "  simulators ", "  environments "),
        ("launcher: {actors: 2}\ninference: {simulators: 4}", "  environments not restored", "nothing"),
        ("launcher: {actors: 2}\ninference: {simulators: 4}", "  simulators   clients connect again", "nothing"),
        ("launcher: {actors: 2}", "  environments not restored", "  simulators "),
    ],
)
def test_resume_speaks_of_what_plays_in_the_run(tmp_path: Path, settings: str, said: str, unsaid: str) -> None:
    """Actors have environments, and clients of the service their own."""
    lines = "\n".join(describe_restored(tmp_path, load_config(yaml.safe_load(settings))))
    assert said in lines
    assert unsaid not in lines


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"replay": {"storage": {"folder": "HERE"}}}, "restored from the log in HERE;"),
        ({"replay": {"storage": {"folder": "HERE/empty"}}}, "not restored: there is no log in HERE/empty"),
        ({"replay": {"storage": {"memory_only": True}}}, "not restored: its tables were in memory only"),
        ({"launcher": {"replay": False}, "cluster": {"replay": ["host:7401"]}}, "service at host:7401"),
    ],
)
def test_resume_says_where_the_experience_is(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    """In the folder that was set, in memory, or with a service of another program; not in the run's folder."""
    (tmp_path / "00000001.log").touch()
    given = json.loads(json.dumps(settings).replace("HERE", str(tmp_path)))
    said = "\n".join(describe_restored(tmp_path / "run", load_config(given)))
    assert words.replace("HERE", str(tmp_path)) in said
