"""SAC: it solves a continuous bandit, keeps gradients apart and knows its own density."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.unit.rl.batches import CONTINUOUS, random_batch
from tidemill.rl import losses
from tidemill.rl.agents.sac.agent import SACAgent
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.agents.sac.policy import SACPolicy
from tidemill.rl.networks.squashed_gaussian import Gaussian, sample
from tidemill.rl.networks.twin_critic import TwinCritic
from tidemill.types import EnvSpec

CPU = torch.device("cpu")
BANDIT = EnvSpec((1,), "float32", action_shape=(1,))


def learn_bandit(config: SACConfig) -> tuple[SACAgent, SACPolicy]:
    """Return an agent after 1000 updates on reward -(action - .5)^2, one step an episode."""
    agent = SACAgent(config, BANDIT, CPU, seed=0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(1_000):
        action = torch.rand((64, 1), generator=rng) * 2 - 1
        batch = {
            "observation": torch.zeros(64, 1),
            "action": action,
            "n_step_return": -(action[:, 0] - 0.5).square(),
            "bootstrap_discount": torch.zeros(64),
            "bootstrap_observation": torch.zeros(64, 1),
        }
        agent.update(batch, torch.ones(64))
    policy = SACPolicy(config, BANDIT, CPU, seed=0)
    policy.load(agent.policy_state())
    return agent, policy


@pytest.mark.parametrize("layer_norm", [False, True])
def test_actor_finds_the_best_action_of_a_bandit(layer_norm: bool) -> None:
    """Nearly without entropy the mean goes to .5, where the reward is largest."""
    config = SACConfig(
        hidden_sizes=(32,),
        learning_rate=3e-3,
        temperature="fixed",
        initial_temperature=1e-3,
        critic_layer_norm=layer_norm,
        random_steps=0,
    )
    _, policy = learn_bandit(config)
    assert policy.greedy(np.zeros((1, 1), dtype=np.float32))[0, 0] == pytest.approx(0.5, abs=0.05)


def test_learned_temperature_brings_the_entropy_to_its_target() -> None:
    """The policy's entropy, estimated from 4000 of its samples, is the -1 nat asked for."""
    config = SACConfig(
        hidden_sizes=(32,), learning_rate=3e-3, initial_temperature=0.1, target_entropy=-1.0, random_steps=0
    )
    agent, policy = learn_bandit(config)
    action = policy.explore(np.zeros((4_000, 1), dtype=np.float32), 0).action[:, 0]
    density, edges = np.histogram(action, bins=60, density=True)
    width = np.diff(edges)
    seen = density > 0
    entropy = -(density * np.log(density, where=seen, out=np.zeros_like(density)) * width)[seen].sum()
    assert entropy == pytest.approx(-1.0, abs=0.25)
    assert float(agent.state_dict()["log_temperature"].exp()) != pytest.approx(0.1, abs=0.03)


def test_log_density_integrates_to_one() -> None:
    """exp(log_prob) summed over a fine grid of actions is 1, so the correction for the squash is right."""
    noise = torch.linspace(-8.0, 8.0, 20_001)[:, None]
    gaussian = Gaussian(torch.full_like(noise, 0.3), torch.full_like(noise, math.log(0.7)))
    action, log_prob = sample(gaussian, noise)
    area = torch.trapezoid(log_prob.exp().double(), action[:, 0].double())
    assert float(area) == pytest.approx(1.0, abs=1e-3)


def test_log_density_stays_finite_where_tanh_is_flat() -> None:
    """At a mean of 50 tanh is 1 in float32, and log(1 - tanh^2) would be minus infinity."""
    action, log_prob = sample(Gaussian(torch.full((1, 1), 50.0), torch.zeros(1, 1)), torch.zeros(1, 1))
    assert float(action) == 1.0
    # -log(sqrt(2 pi)) - 2 (log 2 - 50)
    assert float(log_prob) == pytest.approx(-0.5 * math.log(2 * math.pi) + 100.0 - 2 * math.log(2.0))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_actor_loss_leaves_no_gradient_in_the_critic(layer_norm: bool) -> None:
    """Through a frozen critic the gradient reaches the action, and no parameter of the critic."""
    critic = TwinCritic(5, (16, 16), layer_norm, torch.Generator().manual_seed(0))
    action = torch.zeros((4, 2), requires_grad=True)
    q = critic(torch.randn(4, 3), action, frozen=True)
    losses.sac_actor_loss(q, torch.zeros(4), torch.tensor(0.1)).backward()
    assert action.grad is not None
    assert bool((action.grad != 0).any())
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_frozen_critic_has_the_same_values() -> None:
    """Freezing changes the gradients, not the function."""
    critic = TwinCritic(5, (16, 16), True, torch.Generator().manual_seed(0))
    inputs = torch.randn(4, 3), torch.randn(4, 2)
    assert torch.equal(critic(*inputs), critic(*inputs, frozen=True))


def test_update_leaves_no_gradient_behind() -> None:
    """Neither network accumulates anything from one update to the next."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,)), CONTINUOUS, CPU, seed=0)
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    parameters = [*agent._actor.parameters(), *agent._critic.parameters(), agent._log_temperature]
    assert all(parameter.grad is None for parameter in parameters)


def test_twin_critic_is_two_networks() -> None:
    """Each half of the batched module computes what plain layers with its parameters compute."""
    critic = TwinCritic(5, (16, 16), False, torch.Generator().manual_seed(0))
    observation, action = torch.randn(4, 3), torch.randn(4, 2)
    values = critic(observation, action)
    for twin in range(2):
        x = torch.cat((observation, action), dim=-1)
        for weight, bias in zip(critic.weights, critic.biases, strict=True):
            x = torch.relu(x @ weight[twin] + bias[twin])
        expected = x @ critic.output_weight[twin, 0] + critic.output_bias[twin]
        torch.testing.assert_close(values[twin], expected)
    assert not torch.allclose(values[0], values[1])


def test_target_critic_moves_by_tau() -> None:
    """After one update the target is 3/4 of what it was and 1/4 of the new critic."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,), tau=0.25), CONTINUOUS, CPU, seed=0)
    before = {name: value.clone() for name, value in agent.state_dict()["target"].items()}
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    state = agent.state_dict()
    for name, value in state["target"].items():
        torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * state["critic"][name])


def test_delayed_actor_moves_every_other_update() -> None:
    """With actor_every 2 the first update moves it, the second does not; the critic always moves."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,), actor_every=2), CONTINUOUS, CPU, seed=0)
    states = []
    for number in range(3):
        agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(number)), torch.ones(4))
        state = agent.state_dict()
        states.append((state["actor"]["head.bias"].clone(), state["critic"]["output_bias"].clone()))
    assert torch.equal(states[0][0], states[1][0])
    assert not torch.equal(states[1][0], states[2][0])
    assert not torch.equal(states[0][1], states[1][1])


def test_learning_rate_falls_to_its_final_value() -> None:
    """At the end of the decay, with a final rate of 0, updates change no parameter of the actor."""
    config = SACConfig(hidden_sizes=(8,), learning_rate_decay_updates=2)
    agent = SACAgent(config, CONTINUOUS, CPU, seed=0)
    for number in range(2):
        agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(number)), torch.ones(4))
    before = agent.policy_state()
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(2)), torch.ones(4))
    assert all(torch.equal(value, before[name]) for name, value in agent.policy_state().items())


def test_averaged_policy_is_evaluated_and_the_actor_itself_explores() -> None:
    """The published average lags behind the actor, and greedy actions are the average's."""
    config = SACConfig(hidden_sizes=(8,), policy_average=0.5, random_steps=0, learning_rate=0.05)
    agent = SACAgent(config, CONTINUOUS, CPU, seed=0)
    start = agent.policy_state()
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    state = agent.policy_state()
    for name, value in state.items():
        if name.startswith("average."):
            own = name.removeprefix("average.")
            torch.testing.assert_close(value, 0.5 * start[f"actor.{own}"] + 0.5 * state[f"actor.{own}"])
    plain = SACPolicy(SACConfig(hidden_sizes=(8,)), CONTINUOUS, CPU, seed=0)
    plain.load({name.replace("average.", "actor."): value for name, value in state.items() if "average." in name})
    averaged = SACPolicy(config, CONTINUOUS, CPU, seed=0)
    averaged.load(state)
    observation = np.ones((3, 3), dtype=np.float32)
    np.testing.assert_array_equal(averaged.greedy(observation), plain.greedy(observation))


def test_first_random_steps_are_uniform() -> None:
    """Until the cluster has stepped `random_steps` times the parameters take no part."""
    policy = SACPolicy(SACConfig(hidden_sizes=(8,), random_steps=100), CONTINUOUS, CPU, seed=0)
    action = policy.explore(np.full((4_000, 3), 50.0, dtype=np.float32), 99).action
    np.testing.assert_allclose(action.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(action.var(axis=0), 1 / 3, atol=0.03)


def test_share_of_the_environments_acts_greedily() -> None:
    """With a share of .5 the first two of four environments act by the mean, the others by samples."""
    config = SACConfig(hidden_sizes=(8,), greedy_share=0.5, random_steps=10)
    policy = SACPolicy(config, CONTINUOUS, CPU, seed=0)
    observation = np.ones((4, 3), dtype=np.float32)
    action, greedy = policy.explore(observation, 10).action, policy.greedy(observation)
    np.testing.assert_array_equal(action[:2], greedy[:2])
    assert (action[2:] != greedy[2:]).all()
    assert (policy.explore(observation, 9).action != greedy).all()  # at first all are random


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_exploration_noise_has_the_correlation_asked_for(correlation: float) -> None:
    """Neighbouring steps of 2000 environments correlate as set, and each step's noise keeps its variance."""
    config = SACConfig(hidden_sizes=(8,), noise_correlation=correlation, random_steps=0)
    policy = SACPolicy(config, CONTINUOUS, CPU, seed=0)
    observation = np.zeros((2_000, 3), dtype=np.float32)
    raw = [np.arctanh(policy.explore(observation, 0).action[:, 0]) for _ in range(20)]
    assert np.corrcoef(raw[-2], raw[-1])[0, 1] == pytest.approx(correlation, abs=0.06)
    assert raw[-1].std() == pytest.approx(raw[0].std(), rel=0.08)
