"""Several discrete choices at once: independent categoricals, against torch's own and against a single choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input
from tests.support.envs import ChoicesEnv
from tests.support.naming import naming
from tests.support.playing import play
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.ppo import PPOAgent
from tidemill.rl.networks.actor_critic import build_actor_critic
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec, signature_of

CPU = torch.device("cpu")
SIZES = (2, 4, 3)
SPEC = EnvSpec((3,), "float32", action_shape=(3,), action_sizes=SIZES)


def test_distribution_equals_independent_categoricals() -> None:
    """Log-probabilities and entropies are the sums of torch's, the mode that of each, gradients included."""
    network = build_actor_critic(PPOConfig(hidden_sizes=(8,)), SPEC, seed=0)
    observation = torch.randn((5, 3), generator=torch.Generator().manual_seed(0)) * 30
    action = torch.tensor([[0, 0, 0], [1, 3, 2], [0, 2, 1], [1, 1, 1], [0, 3, 0]])
    distribution, _ = network(observation)
    logits = network.policy[1](torch.tanh(network.policy[0](observation)))
    parts = [torch.distributions.Categorical(logits=part) for part in logits.split(SIZES, dim=1)]
    log_prob = torch.stack([part.log_prob(action[:, i]) for i, part in enumerate(parts)]).sum(dim=0)
    entropy = torch.stack([part.entropy() for part in parts]).sum(dim=0)
    torch.testing.assert_close(distribution.log_prob(action), log_prob)
    torch.testing.assert_close(distribution.entropy(), entropy)
    assert distribution.mode().tolist() == torch.stack([part.logits.argmax(1) for part in parts], dim=1).tolist()
    for ours, theirs in ((distribution.log_prob(action), log_prob), (distribution.entropy(), entropy)):
        found, expected = (
            torch.autograd.grad(x.sum(), list(network.policy.parameters()), retain_graph=True) for x in (ours, theirs)
        )
        for gradient, other in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)


def test_choices_are_drawn_by_their_probabilities() -> None:
    """Each apart, never an option beyond its own; the log-probability reported is that of the draw."""
    policy, count = build_policy(PPOConfig(hidden_sizes=()), SPEC, seed=1), 20_000
    state = {
        name: value.clone()
        for name, value in build_actor_critic(PPOConfig(hidden_sizes=()), SPEC, 0).state_dict().items()
    }
    state["policy.0.weight"].zero_()
    state["policy.0.bias"].copy_(torch.tensor([0.5, 0.5, 0.1, 0.2, 0.3, 0.4, 0.7, 0.2, 0.1]).log())
    policy.load(state)
    output = policy.act(policy_input(np.zeros((count, 3), np.float32)))
    assert output.action.shape == (count, 3)
    assert output.action.dtype == np.int64
    expected = ([0.5, 0.5], [0.1, 0.2, 0.3, 0.4], [0.7, 0.2, 0.1])
    for choice, probability in enumerate(expected):
        frequency = np.bincount(output.action[:, choice]) / count
        np.testing.assert_allclose(frequency, probability, atol=0.015)
    chosen = np.array([[expected[i][a] for i, a in enumerate(row)] for row in output.action])
    np.testing.assert_allclose(output.extras["log_prob"], np.log(chosen).sum(axis=1), rtol=1e-4)
    masked = policy_input(np.zeros((2, 3), np.float32))
    legal = np.array([[1, 0, 1, 0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 1, 0, 1, 0, 0]], np.bool_)
    for evaluation in (False, True):
        action = policy.act(type(masked)(**{**vars(masked), "action_mask": legal}), evaluation=evaluation).action
        assert action[0].tolist() == [0, 0, 2]
        assert action[1, [0, 2]].tolist() == [1, 0]
        assert action[1, 1] in (1, 2)


@pytest.mark.parametrize("agent_class, config_class", [(PPOAgent, PPOConfig), (IMPALAAgent, IMPALAConfig)])
def test_one_choice_is_a_discrete_action(agent_class: type[Any], config_class: type[Any]) -> None:
    """With the same parameters and rollout the loss and all that is reported are equal."""
    config, rng = config_class(hidden_sizes=(8,), unroll=4), np.random.default_rng(0)
    rows = 12
    columns = {
        "observation": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": rng.integers(4, size=rows),
        "reward": rng.normal(size=rows).astype(np.float32),
        "log_prob": np.full(rows, -1.4, np.float32),
        "terminated": np.arange(rows) == 6,
        "truncated": np.zeros(rows, np.bool_),
        "is_first": np.arange(rows) == 7,
    }
    index = np.arange(2)[:, None] * 5 + np.arange(6)
    reported = []
    for spec in (
        EnvSpec((3,), "float32", num_actions=4),
        EnvSpec((3,), "float32", action_shape=(1,), action_sizes=(4,)),
    ):
        own = columns | {"action": columns["action"].reshape(rows, *spec.action_shape)}
        agent = agent_class(config, spec, CPU, 3)
        batch = {name: torch.from_numpy(column) for name, column in agent.decode(own, index).items()}
        reported.append(agent.update(batch, torch.ones(2)).metrics)
    for name, value in reported[0].items():
        torch.testing.assert_close(reported[1][name], value)


@pytest.mark.parametrize("config", [DQNConfig(network="mlp"), R2D2Config(network="mlp")])
def test_algorithms_of_one_choice_name_those_of_several(config: DQNConfig | R2D2Config) -> None:
    """And the setting that makes one choice of them."""
    with pytest.raises(ConfigError, match=naming("3 agent.algorithm ppo impala env.joint_actions true")):
        config.validate_env(SPEC)
    config.validate_env(spec_of(EnvSettings("tests.support.envs:choices", joint_actions=True)))
    with pytest.raises(ConfigError, match=naming("3 agent.algorithm ppo impala")):
        SACConfig().validate_env(SPEC)


def test_action_column_has_every_choice() -> None:
    """Integers, and a mask as long as all options together."""
    columns = {column.name: column for column in signature_of(EnvSpec((3,), "float32", 1, 0, (3,), True, SIZES))}
    assert (columns["action"].dtype, columns["action"].shape) == ("int64", (3,))
    assert columns["action_mask"].shape == (9,)


def test_ppo_learns_every_choice() -> None:
    """All three right at each of the 4 steps of an episode."""
    settings = EnvSettings("tests.support.envs:choices")
    config = PPOConfig(hidden_sizes=(16,), unroll=9, learning_rate=0.02, epochs=4, minibatches=2)
    spec = spec_of(settings)
    agent, policy = build_agent(config, spec, seed=1), build_policy(config, spec, seed=1)
    index = np.arange(16)[:, None] * 10 + np.maximum(np.arange(11) - 1, 0)
    for _ in range(15):
        columns = play(settings, policy, 10, 16)
        batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
        agent.update(batch, torch.ones(16))
        policy.load(agent.policy_state())
    played = play(settings, policy, ChoicesEnv.LENGTH, 1, evaluation=True)
    assert played["reward"].tolist() == [3.0] * 4
