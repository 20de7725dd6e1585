"""Mistakes of users, and what the answer must contain: the value that is wrong, and what to do about it.

Each is answered in this process, without starting a service: by the settings, by the environment, or by a command that
finds nothing to work on.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.addresses import check_shards
from tidemill.config.load import load, write_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.launcher import cli
from tidemill.services.launcher.run.env_check import try_here

ENVS = "tests.unit.launcher.test_random_play"
CARTPOLE = "--env.id CartPole-v1"

OPTIONS = [
    ("--learner.device gpu", "learner.device 'gpu' auto cpu cuda cuda:N"),
    ("--agent.lr 3e-4", "'--agent.learning-rate'"),
    ("--learning-rate 3e-4", "'--agent.learning-rate'"),
    ("--agent.algorithm td3 --lr 3e-4", "'--agent.critic-learning-rate'"),
    ("--total-timesteps 100000", "'--run.max-env-steps'"),
    ("--env CartPole-v1", "'--env.id'"),
    ("--env-id CartPole-v1", "'--env.id'"),
    ("--gym-id CartPole-v1", "'--env.id'"),
    ("--seed 3", "'--run.seed'"),
    ("--device cuda", "'--learner.device'"),
    ("--cuda", "'--learner.device'"),
    ("--buffer-size 1000", "'--table.max-items'"),
    ("--learning-starts 1000", "'--table.min-size'"),
    ("--n-envs 4", "'--env.num-envs'"),
    ("--num-workers 4", "'--launcher.actors'"),
    ("--exp-name x", "'--run.name'"),
    ("--track", "'--launcher.loggers'"),
    ("--agent.algorithm ppo --agent.n-steps 64", "'--agent.unroll'"),
    ("--agent.algorithm ppo --agent.clip-range .1", "'--agent.clip'"),
    ("--agent.net-arch 64 64", "'--agent.hidden-sizes'"),
    ("--train-freq 4", "'--learner.updates-per-env-step'"),
    ("--eval-freq 10", "'--evaluator.every-env-steps'"),
    ("--target-reward 200", "'--run.target-return'"),
    ("--learner.batch-size 32", "'--agent.batch-size'"),
    ("--actor.num-envs 4", "'--env.num-envs'"),
    ("--agent.algorithm dqn --actor.epsilon 0.1", "'--agent.epsilon-final'"),
    ("--epsilon 0.1 --agent.algorithm dqn", "'--agent.epsilon-final'"),
    ("--batch-size 32", "'--agent.batch-size'"),
    ("--evaluator.target-return 200", "'--run.target-return'"),
    ("--learner.checkpoint-every 10", "'--learner.checkpoint-every-s'"),
    ("--run.sed 3", "'--run.seed'"),
    ("--agnt.gamma 0.9", "'--agent.gamma'"),
    ("--optimiser.name adam", "log run cluster env"),
    ("--agent.algorithm dqnn", "'dqn'"),
    ("--agent.algorithm a2c", "'ppo'"),
    ("--agent.algorithm QR-DQN", "'dqn' --agent.distribution qr"),
    ("--agent.algorithm vmpo", "impala ppo pqn r2d2 sac sac_discrete td3"),
    ("--agent.learning-rate 0,001", "agent.learning_rate '0,001' 0.001"),
    ("quickstart", "'quickstart' --config"),
    ("my.yaml", "--config my.yaml"),
    ("--agent.algorithm nowhere:Config", "nowhere"),
    ("--agent.double", "--agent.double dqn r2d2 agent.algorithm 'sac'"),
    ("--agent.hidden-sizes 64,x", "agent.hidden_sizes[1] 'x'"),
    ("--agent.hidden-sizes -1", "agent.hidden_sizes (-1,)"),
    ("--run.seed 1.5", "run.seed '1.5'"),
    ("--agent.gamma 99", "agent.gamma 99.0 0 1"),
    ("--agent.learning-rate 0", "agent.learning_rate 0.0"),
    ("--agent.learning-rate 1e-x", "agent.learning_rate '1e-x'"),
    ("--table.max-items 10", "table.min_size 1000 1 table.max_items 10"),
    ("--table.name Pong-v5", "table.name 'Pong-v5' 63"),
    ("--table.max-items 3e9", "table.max_items 3000000000 1 2147483647"),
    ("--table.sampler priority", "table.sampler 'uniform' 'prioritized' 'fifo'"),
    ("--run.name a/b", "run.name 'a/b'"),
    ("--run.target-return solved", "run.target_return 'solved' none"),
    ("--evaluator.video=maybe", "evaluator.video 'maybe' true false"),
    ("--run.seed", "--run.seed"),
    ("CartPole-v1", "'CartPole-v1' --env.id CartPole-v1"),
    ("dqn", "'dqn' --section.name VALUE"),
    ("--replay.server.address 1.2.3.4.5", "server.address '1.2.3.4.5' host:port"),
    ("--cluster.replay nohost", "cluster.replay 'nohost' host:port"),
    ("--config quikstart", "'quickstart'"),
    ("--config nowhere/x.yaml", "--config 'nowhere/x.yaml'"),
    ("--config", "--config"),
    ("--agent.algorithm ppo --table.sampler uniform", "table.sampler 'fifo'"),
    ("--agent.algorithm ppo --learner.updates-per-env-step 1", "learner.updates_per_env_step 0"),
    ("--agent.algorithm ppo --agent.batch-size 7", "agent.batch_size 7 4"),
    ("--learner.max-policy-lag 0", "-1"),
    ("--agent.algorithm ppo --launcher.inference 1", "launcher.inference 1 learner.max_policy_lag 0 -1"),
    ("--agent.algorithm impala --cluster.inference h:1", "cluster.inference learner.max_policy_lag 2 -1"),
    (
        "--launcher.inference 1 --table.sampler prioritized",
        "launcher.inference 1 table.sampler 'prioritized' 'sac' actor.inference_fallback 'local'",
    ),
    ("--launcher.inference 1 --env.num-envs 257", "env.num_envs 257 inference.max_batch 256 launcher.inference 1"),
    (
        "--launcher.inference 2 --inference.max-streams 3 --launcher.actors 7",
        "launcher.actors 7 launcher.inference 2 inference.max_streams 3 6 actor.inference_fallback 'local'",
    ),
    ("--agent.algorithm ppo --run.deterministic", "run.deterministic sac"),
    ("--run.deterministic --run.max-wall-s 9", "run.max_learner_steps"),
    ("--table.hindsight 2", "table.hindsight 2.0 0 1"),
    ("--agent.algorithm ppo --table.hindsight 0.8", "table.hindsight"),
    ("--table.hindsight 0.8 --learner.mirror-device device", "learner.mirror_device 'device' table.hindsight 'auto'"),
    ("--launcher.learners 0", "launcher.learners 0 1"),
    ("--launcher.learners 3", "agent.batch_size 256 3"),
    (
        "--agent.algorithm ppo --agent.lstm-size 16 --launcher.learners 2",
        "2 agent.batch_size 2 agent.minibatches 4",
    ),
    ("--launcher.learners 2 --learner.device cuda:1", "learner.device 'cuda:1' 2 auto cuda"),
    ("--env.num-envs 16385", "env.num_envs 16385 16384"),
    (f"--actor.id {'a' * 127}", "actor.id 126 launcher.actors 1"),
    (
        "--run.deterministic --launcher.actors 2 --actor.index 1 --learner.updates-per-env-step 1",
        "actor.index 1 launcher.actors (2) actor.count (2) 3",
    ),
    (
        "--table.sampler fifo --learner.updates-per-env-step 0.001 --table.max-items 200 --table.min-size 100",
        "table.max_items 200 'fifo' 256 agent.batch_size",
    ),
    ("--cluster.replay-shards 4", "cluster.replay_shards 4 replay.shards 1"),
    ("--replay.shards 2 --cluster.replay-shards 3", "cluster.replay_shards 3 replay.shards 2"),
    ("--actor.log-every-s 0", "actor.log_every_s 0.0"),
    ("--actor.server.grace-s -1", "server.grace_s -1.0 0"),
    ("--learner.server.max-message-bytes 0", "server.max_message_bytes 0"),
    ("--replay.server.max-request-bytes -1", "server.max_request_bytes -1 0"),
    ("--env.kwargs gravity", "--env.kwargs"),
    ("--env.kwargs start 2020-01-01", "env.kwargs.start '2020-01-01' quotes"),
    ("--env.kwargs layout '{1: a, b: c}'", "env.kwargs.layout 1 quotes"),
    ("--env.frame-stack 2 --env.id CartPole-v1", "env.frame_stack ALE/ env.observation_stack"),
    (
        "--replay.shards 2 --replay.server.address 127.0.0.1:7499",
        "replay.server.address replay.shards 2",
    ),
]
"""Words after `tidemill train`, and what the answer must contain; settings alone are read."""

ENVIRONMENTS = [
    ("--env.id LunarLandrContinuous-v3", "'LunarLanderContinuous-v3'"),
    ("--env.id nowhere:make", "'nowhere'"),
    ("--env.id my-robot", "'my-robot' env.spaces simulators"),
    ("--env.id tests.support.envs:cuonting", "'counting'"),
    ("--env.id PongNoFrameskip-v4", "'ALE/Pong-v5'"),
    ("--env.id ALE/Pnog-v5", "'ALE/Pong-v5'"),
    (CARTPOLE, "agent.algorithm 'sac' dqn"),
    (
        "--env.id Pendulum-v1 --agent.algorithm dqn",
        "agent.algorithm 'dqn' sac",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.network nature", "agent.network 'nature' (4,) auto"),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.network resnet", "agent.network 'resnet' auto"),
    (f"{CARTPOLE} --agent.algorithm ppo --actor.precision bfloat16", "actor.precision 'bfloat16' 'ppo' dqn r2d2"),
    (f"{CARTPOLE} --agent.algorithm dqn --inference.precision bfloat16", "inference.precision 'bfloat16' images"),
    (
        "--env.id tests.support.envs:pixels --env.kwargs shape '[3, 84, 84]' --agent.algorithm dqn",
        "(3, 84, 84) [H, W, C]",
    ),
    (
        "--env.id tests.support.envs:pixels --env.kwargs shape '[4, 84, 84, 3]' --agent.algorithm dqn",
        "(4, 84, 84, 3) env.observation_stack",
    ),
    (
        f"{CARTPOLE} --agent.algorithm dqn --env.kwargs lenght 3",
        "env.kwargs {'lenght': 3} CartPole-v1",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --env.observation-indices 9", "env.observation_indices (9,) (4,)"),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.n-step 70000", "70001 65535"),
    (
        f"{CARTPOLE} --agent.algorithm dqn --agent.batch-size 8193 --learner.batches-per-sample 8",
        "agent.batch_size 8193 learner.batches_per_sample 8 65544 65536 agent.n_step",
    ),
    (
        f"{CARTPOLE} --agent.algorithm dqn --agent.batch-size 65537 --learner.batches-per-sample 8 "
        "--table.sampler fifo --learner.updates-per-env-step 0",
        "agent.batch_size 65537 65537 65536 agent.n_step",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.n-step 20000 --agent.batch-size 256", "agent.batch_size 256 20001 209"),
    (
        f"{CARTPOLE} --agent.algorithm dqn --agent.n-step 20000 --agent.batch-size 256 --launcher.replay false",
        "agent.batch_size 256 20001 209",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --evaluator.policy sampled", "evaluator.policy 'sampled' 'greedy' 'epsilon'"),
    ("--env.id Pendulum-v1 --evaluator.policy epsilon", "evaluator.policy 'epsilon' 'greedy' 'sampled'"),
    (
        "--env.id Pendulum-v1 --evaluator.policy sampled --evaluator.source simulators --inference.simulators 1",
        "evaluator.policy 'sampled' evaluator.source 'simulators' 'greedy' 'epsilon'",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.loss nowhere:loss", "'nowhere'"),
    (f"{CARTPOLE} --agent.algorithm dqn --learner.callbacks nowhere:Call", "nowhere"),
    (f"{CARTPOLE} --agent.algorithm dqn --table.hindsight 0.8 --agent.n-step 1", "Dict achieved_goal"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how 'step of four'", "4 step"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how NaN", "observation finite"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how crash", "ZeroDivisionError"),
    (f"--env.id {ENVS}:OldReset --agent.algorithm dqn --env.kwargs how x", "seed options"),
]
"""The same, with one environment that is made and played."""

COMMANDS = [
    ("trian", "'train'"),
    ("resume", "tidemill resume RUN"),
    ("resume runs/nothing", "runs/nothing config.yaml"),
    ("export nothing", "nothing"),
    ("plot nothing", "nothing"),
    ("plot --out curve.txt nothing", ".png"),
    ("sweep nothing.yaml", "nothing.yaml"),
    ("configs quikstart", "'quickstart'"),
    ("status nothing", "nothing"),
]
"""Words after `tidemill`."""


@pytest.mark.parametrize("words, line", OPTIONS, ids=[words for words, _ in OPTIONS])
def test_wrong_settings_are_answered_in_a_line(words: str, line: str) -> None:
    """By what was meant, or what is allowed."""
    with pytest.raises(ConfigError, match=naming(line)) as refused:
        check_shards(_read(words))
    _is_readable(str(refused.value))


@pytest.mark.parametrize("words, line", ENVIRONMENTS, ids=[words for words, _ in ENVIRONMENTS])
def test_environment_that_does_not_do_is_answered_in_a_line(words: str, line: str, tmp_path: Path) -> None:
    """Before anything is started."""
    said = ""
    try:
        config = _read(words)
    except ConfigError as error:
        said = str(error)
    else:
        write_document(config, tmp_path / "settings.yaml")
        try_here(tmp_path)
        said = (tmp_path / "refusal").read_text()
    assert re.search(naming(line), said)
    _is_readable(said)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory without runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("words, line", COMMANDS, ids=[words for words, _ in COMMANDS])
def test_command_that_finds_nothing_says_so(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with an exit code that is not 0."""
    assert cli.main(words.split()) in (1, 2)
    said = capsys.readouterr().err
    assert re.search(naming(line), said)
    _is_readable(said.strip())


def _read(words: str) -> RunConfig:
    arguments = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", words)]
    return load(RunConfig, arguments, prog="tidemill train", description="")


def _is_readable(said: str) -> None:
    """An answer is a line, with no traceback and nothing of Python's own."""
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said
    assert len(said) < 900, said
