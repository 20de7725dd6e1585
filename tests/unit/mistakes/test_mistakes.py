"""Mistakes of users, and what the answer must contain: the value that is wrong, and what to do about it.

Each is answered in this process, without starting a service: by the settings, by the environment, or by a command that
finds nothing to work on.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.config.load import load, write_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.launcher import cli
from tidemill.services.launcher.run.env_check import try_here
from tidemill.services.launcher.run.paths import check_shards

ENVS = "tests.unit.launcher.test_random_play"
CARTPOLE = "--env.id CartPole-v1"

OPTIONS = [
    ("--learner.device gpu", "allowed: auto, cpu, cuda or cuda:N"),
    ("--agent.lr 3e-4", "here it is '--agent.learning-rate'"),
    ("--learning-rate 3e-4", "here it is '--agent.learning-rate'"),
    ("--agent.algorithm td3 --lr 3e-4", "here it is '--agent.critic-learning-rate'"),
    ("--total-timesteps 100000", "here it is '--run.max-env-steps'"),
    ("--env CartPole-v1", "here it is '--env.id'"),
    ("--env-id CartPole-v1", "here it is '--env.id'"),
    ("--gym-id CartPole-v1", "here it is '--env.id'"),
    ("--seed 3", "did you mean '--run.seed'?"),
    ("--device cuda", "here it is '--learner.device'"),
    ("--cuda", "here it is '--learner.device'"),
    ("--buffer-size 1000", "here it is '--table.max-items'"),
    ("--learning-starts 1000", "here it is '--table.min-size'"),
    ("--n-envs 4", "here it is '--env.num-envs'"),
    ("--num-workers 4", "here it is '--launcher.actors'"),
    ("--exp-name x", "here it is '--run.name'"),
    ("--track", "here it is '--launcher.loggers'"),
    ("--agent.algorithm ppo --agent.n-steps 64", "here it is '--agent.unroll'"),
    ("--agent.algorithm ppo --agent.clip-range .1", "here it is '--agent.clip'"),
    ("--agent.net-arch 64 64", "here it is '--agent.hidden-sizes'"),
    ("--train-freq 4", "here it is '--learner.updates-per-env-step'"),
    ("--eval-freq 10", "here it is '--evaluator.every-env-steps'"),
    ("--target-reward 200", "here it is '--run.target-return'"),
    ("--learner.batch-size 32", "'--agent.batch-size'"),
    ("--actor.num-envs 4", "did you mean '--env.num-envs'?"),
    ("--agent.algorithm dqn --actor.epsilon 0.1", "here it is '--agent.epsilon-final'"),
    ("--epsilon 0.1 --agent.algorithm dqn", "here it is '--agent.epsilon-final'"),
    ("--batch-size 32", "'--agent.batch-size'"),
    ("--evaluator.target-return 200", "did you mean '--run.target-return'?"),
    ("--learner.checkpoint-every 10", "did you mean '--learner.checkpoint-every-s'?"),
    ("--run.sed 3", "did you mean '--run.seed'?"),
    ("--agnt.gamma 0.9", "did you mean '--agent.gamma'?"),
    ("--optimiser.name adam", "sections are log, run, cluster, env"),
    ("--agent.algorithm dqnn", "did you mean 'dqn'?"),
    ("--agent.algorithm a2c", "or a package; here 'ppo' is the closest"),
    ("--agent.algorithm QR-DQN", "here it is 'dqn' with --agent.distribution qr"),
    ("--agent.algorithm vmpo", "impala, ppo, pqn, r2d2, sac, sac_discrete, td3, or a package"),
    ("--agent.learning-rate 0,001", "agent.learning_rate is '0,001', allowed: a number, with a point: 0.001"),
    ("quickstart", "'quickstart' is not an option; did you mean --config quickstart?"),
    ("my.yaml", "did you mean --config my.yaml?"),
    ("--agent.algorithm nowhere:Config", "importing nowhere failed"),
    ("--agent.double", "it belongs to dqn and r2d2, and agent.algorithm is 'sac'"),
    ("--agent.hidden-sizes 64,x", "agent.hidden_sizes[1] is 'x', allowed: a whole number"),
    ("--agent.hidden-sizes -1", "agent.hidden_sizes is (-1,), but must be"),
    ("--run.seed 1.5", "run.seed is '1.5', allowed: a whole number"),
    ("--agent.gamma 99", "agent.gamma is 99.0, but must be between 0 and 1"),
    ("--agent.learning-rate 0", "agent.learning_rate is 0.0, but must be positive"),
    ("--agent.learning-rate 1e-x", "agent.learning_rate is '1e-x', allowed: a number"),
    ("--table.max-items 10", "table.min_size is 1000, allowed: 1 to table.max_items (10)"),
    ("--table.sampler priority", "allowed: one of 'uniform', 'prioritized', 'fifo'"),
    ("--run.name a/b", "run.name is 'a/b', allowed: letters"),
    ("--run.target-return solved", "run.target_return is 'solved', allowed: a number or none"),
    ("--evaluator.video=maybe", "allowed: true or false"),
    ("--run.seed", "option --run.seed needs a value"),
    ("CartPole-v1", "'CartPole-v1' is not an option; did you mean --env.id CartPole-v1?"),
    ("dqn", "'dqn' is not an option; options are --section.name VALUE"),
    ("--replay.server.address 1.2.3.4.5", "server.address is '1.2.3.4.5', allowed: host:port"),
    ("--cluster.replay nohost", "cluster.replay is 'nohost', allowed: host:port"),
    ("--config quikstart", "did you mean 'quickstart'?"),
    ("--config nowhere/x.yaml", "cannot read --config 'nowhere/x.yaml'"),
    ("--config", "--config needs a value"),
    ("--agent.algorithm ppo --table.sampler uniform", "set it to 'fifo'"),
    ("--agent.algorithm ppo --learner.updates-per-env-step 1", "set it to 0"),
    ("--agent.algorithm ppo --agent.batch-size 7", "must be a multiple of the 4 environments"),
    ("--learner.max-policy-lag 0", "learns from items of any age: leave it at -1"),
    ("--agent.algorithm ppo --run.deterministic", "allows those that draw single transitions"),
    ("--run.deterministic --run.max-wall-s 9", "only run.max_learner_steps ends a run"),
    ("--table.hindsight 2", "table.hindsight is 2.0, allowed: 0 to 1"),
    ("--agent.algorithm ppo --table.hindsight 0.8", "goals are relabelled for algorithms of single transitions"),
    ("--launcher.learners 0", "launcher.learners is 0, allowed: at least 1"),
    ("--env.kwargs gravity", "needs names and values in turn"),
    ("--env.frame-stack 2 --env.id CartPole-v1", "it is for ALE/ games alone; env.observation_stack"),
    ("--replay.shards 2 --replay.server.address 127.0.0.1:7499", "shards cannot share"),
]
"""Words after `tidemill train`, and what the answer must contain; settings alone are read."""

ENVIRONMENTS = [
    ("--env.id LunarLandrContinuous-v3", "did you mean 'LunarLanderContinuous-v3'?"),
    ("--env.id nowhere:make", "importing nowhere failed: No module named 'nowhere': install it"),
    ("--env.id tests.support.envs:cuonting", "did you mean 'counting'?"),
    ("--env.id PongNoFrameskip-v4", "use 'ALE/Pong-v5'"),
    ("--env.id ALE/Pnog-v5", "did you mean 'ALE/Pong-v5'?"),
    (CARTPOLE, "algorithm is 'sac', but the environment's actions are discrete: set agent.algorithm to dqn"),
    (
        "--env.id Pendulum-v1 --agent.algorithm dqn",
        "the environment's actions are continuous: set agent.algorithm to sac",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.network nature", "observes numbers of shape (4,): leave it at auto"),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.network resnet", "agent.network is 'resnet', but must be auto"),
    (
        f"{CARTPOLE} --agent.algorithm dqn --env.kwargs lenght 3",
        "env.kwargs are {'lenght': 3}, which CartPole-v1 refuses",
    ),
    (f"{CARTPOLE} --agent.algorithm dqn --env.observation-indices 9", "allowed are positions in a vector"),
    (f"{CARTPOLE} --agent.algorithm dqn --agent.loss nowhere:loss", "there is no module 'nowhere'"),
    (f"{CARTPOLE} --agent.algorithm dqn --learner.callbacks nowhere:Call", "importing nowhere failed"),
    (f"{CARTPOLE} --agent.algorithm dqn --table.hindsight 0.8 --agent.n-step 1", "must be a Dict with achieved_goal"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how 'step of four'", "returned 4 values from step"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how NaN", "non-finite observation"),
    (f"--env.id {ENVS}:Broken --agent.algorithm dqn --env.kwargs how crash", "raised ZeroDivisionError"),
    (f"--env.id {ENVS}:OldReset --agent.algorithm dqn --env.kwargs how x", "must take the arguments seed and options"),
]
"""The same, with one environment that is made and played."""

COMMANDS = [
    ("trian", "did you mean 'train'?"),
    ("resume", "which run? tidemill resume RUN"),
    ("resume runs/nothing", "is not a run (it has no config.yaml); runs there: none"),
    ("export nothing", "nothing"),
    ("plot nothing", "nothing holds no run with an evaluation yet"),
    ("plot --out curve.txt nothing", "allowed: a name that ends in .png"),
    ("sweep nothing.yaml", "cannot read"),
    ("configs quikstart", "did you mean 'quickstart'?"),
    ("status nothing", "nothing"),
]
"""Words after `tidemill`."""


@pytest.mark.parametrize("words, line", OPTIONS, ids=[words for words, _ in OPTIONS])
def test_wrong_settings_are_answered_in_a_line(words: str, line: str) -> None:
    """By what was meant, or what is allowed."""
    with pytest.raises(ConfigError, match=re.escape(line)) as refused:
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
    assert line in said
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
    assert line in said
    _is_readable(said.strip())


def _read(words: str) -> RunConfig:
    arguments = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", words)]
    return load(RunConfig, arguments, prog="tidemill train", description="")


def _is_readable(said: str) -> None:
    """An answer is a line, with no traceback and nothing of Python's own."""
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said
    assert len(said) < 900, said
