"""The protocol's settings reach the policy and the environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.naming import naming
from tests.unit.evaluator.blobs import params_of
from tidemill.config.evaluation import epsilon_of
from tidemill.config.sections import EvaluatorConfig
from tidemill.config.services import EvaluatorSettings
from tidemill.envs.interface import VectorEnv
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.agents.deterministic import DeterministicPolicy
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.deterministic import DDPGConfig, TD3Config
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.evaluator import episode_runner
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.protocol import Evaluation

DQN = DQNConfig(network="mlp", hidden_sizes=(4,))
PONG = EnvSettings("ALE/Pong-v5", noop_max=7, max_evaluation_steps=3)


def _config(env: EnvSettings, agent: object, **evaluator: object) -> EvaluatorConfig:
    settings = EvaluatorSettings(**{"num_envs": 2, **evaluator})  # type: ignore[arg-type]
    return EvaluatorConfig(env=env, agent=agent, evaluator=settings)  # type: ignore[arg-type]


def _test(config: EvaluatorConfig, seeds: range = range(4)) -> Evaluation:
    with closing(EpisodeRunner(config)) as runner:
        evaluation = runner.run(params_of(config), seeds)
    assert evaluation is not None
    return evaluation


@pytest.mark.parametrize(
    "env_id, agent, policy, message",
    [
        ("Pendulum-v1", SACConfig(hidden_sizes=(4,)), "epsilon", "'epsilon' continuous 'greedy'"),
        ("CartPole-v1", DQN, "sampled", "'sampled' 'greedy' 'epsilon'"),
    ],
)
def test_policy_that_the_actions_do_not_allow_is_refused(env_id: str, agent: object, policy: str, message: str) -> None:
    """The message names the setting and what is allowed instead."""
    with pytest.raises(ConfigError, match=naming(message)):
        EpisodeRunner(_config(EnvSettings(env_id), agent, policy=policy))


def test_epsilon_is_the_evaluators_or_else_the_agents() -> None:
    """An epsilon of the evaluator is used whatever the agent's is; without one the agent's is used."""
    agent = replace(DQN, evaluation_epsilon=0.25)
    assert epsilon_of(_config(EnvSettings("CartPole-v1"), agent)) == 0.25
    assert epsilon_of(_config(EnvSettings("CartPole-v1"), agent, epsilon=0.05)) == 0.05
    assert epsilon_of(_config(EnvSettings("Pendulum-v1"), SACConfig())) == 0.0


def test_random_actions_change_the_episodes_and_repeat_themselves() -> None:
    """Epsilon 1 differs from the greedy policy and from epsilon 0, and is the same again for the same seeds."""
    cartpole = EnvSettings("CartPole-v1")
    greedy, none, all_random, again = (
        _test(_config(cartpole, DQN, policy=policy, epsilon=epsilon), range(12)).returns.tolist()
        for policy, epsilon in (("greedy", None), ("epsilon", 0.0), ("epsilon", 1.0), ("epsilon", 1.0))
    )
    assert greedy == none
    assert all_random != greedy
    assert all_random == again


@pytest.mark.parametrize("agent", [SACConfig(hidden_sizes=(4,)), TD3Config(hidden_sizes=(4,))])
def test_sampled_policy_plays_with_the_noise_it_explores_by(agent: object) -> None:
    """The deterministic policy brings the same returns twice; the sampled one brings others."""
    pendulum = EnvSettings("Pendulum-v1", max_evaluation_steps=20)
    greedy, again, sampled = (
        _test(_config(pendulum, agent, policy=policy)).returns.tolist() for policy in ("greedy", "greedy", "sampled")
    )
    assert greedy == again
    assert sampled != greedy


@pytest.mark.parametrize(
    "agent, with_quiet_actors",
    [
        (SACConfig(hidden_sizes=(4,)), SACConfig(hidden_sizes=(4,), greedy_fraction=0.5)),
        (TD3Config(hidden_sizes=(4,)), TD3Config(hidden_sizes=(4,), noise=NoiseConfig(greedy_fraction=0.5))),
    ],
)
def test_sampled_policy_has_noise_in_every_episode(agent: object, with_quiet_actors: object) -> None:
    """Environments of actors that act without noise are training's alone: none of the evaluation's does."""
    pendulum = EnvSettings("Pendulum-v1", max_evaluation_steps=20)
    expected, found = (
        _test(_config(pendulum, each, policy="sampled")).returns.tolist() for each in (agent, with_quiet_actors)
    )
    assert found == expected


def test_noise_that_lasts_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampled policy is asked for every slot at every step, also when the last episode plays alone."""
    asked: list[int] = []
    act = DeterministicPolicy.act

    def counted(self: DeterministicPolicy, policy_input: PolicyInput, env_steps: int) -> PolicyOutput:
        asked.append(len(policy_input))
        return act(self, policy_input, env_steps)

    monkeypatch.setattr(DeterministicPolicy, "act", counted)
    agent = DDPGConfig(actor_sizes=(4,), critic_sizes=(4, 4), noise=NoiseConfig("ou"))
    config = _config(EnvSettings("Pendulum-v1", max_evaluation_steps=20), agent, policy="sampled")
    _test(config, range(3))
    assert asked == [2] * 40


def test_noop_starts_of_evaluation_are_its_own() -> None:
    """`evaluator.noop_max` takes the place of `env.noop_max`, which stands if it is not given."""
    agent = DQNConfig(hidden_sizes=(4,))
    for noop_max, expected in ((None, 7), (0, 0), (30, 30)):
        with closing(EpisodeRunner(_config(PONG, agent, noop_max=noop_max))) as runner:
            assert runner._env.noop_max == expected


def test_full_games_with_raw_rewards_are_played_whatever_training_does() -> None:
    """Lives and clipped rewards are training's alone: greedy games of Ms. Pac-Man bring points in tens."""
    env = EnvSettings("ALE/MsPacman-v5", episodic_life=True, clip_rewards=True, max_evaluation_steps=150)
    config = _config(env, DQNConfig(hidden_sizes=(4,)), policy="epsilon", epsilon=1.0)
    evaluation = _test(config, range(2))
    assert (evaluation.returns >= 50).all()
    assert (evaluation.returns % 10 == 0).all()
    assert evaluation.lengths.tolist() == [150, 150]


def test_environments_are_made_by_what_watches_them() -> None:
    """Those of an evaluation and that of the video: a constructor may hang, too."""
    made: list[VectorEnv] = []

    def keep(make: Callable[[], VectorEnv]) -> VectorEnv:
        made.append(make())
        return made[-1]

    config = _config(EnvSettings("CartPole-v1"), DQN)
    played: list[VectorEnv] = []
    with closing(EpisodeRunner(config, made=keep)) as runner:
        assert runner.run(params_of(config), range(4)) is not None
        assert len(made) == 2
        runner.record(params_of(config), lambda env, _: played.append(env))
    assert played == made[2:]


def test_environment_in_a_separate_process_draws_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started with the variables that pygame and MuJoCo read."""
    config = _config(EnvSettings("CartPole-v1", isolate=True), DQN)
    expected = {"SDL_VIDEODRIVER": "dummy"} | ({"MUJOCO_GL": "egl"} if sys.platform == "linux" else {})
    seen: dict[str, str] = {}
    with closing(EpisodeRunner(config)) as runner:
        monkeypatch.setattr(episode_runner, "make_isolated", lambda _, render: seen.update(os.environ))
        monkeypatch.setattr(os, "environ", {})
        runner.record(params_of(config), lambda *_: None)
    assert expected.items() <= seen.items()
