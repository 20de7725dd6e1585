"""DQN: its target network, its gradients and its exploration; and a chain whose Q* is known."""

from __future__ import annotations

import numpy as np
import torch

from tests.support.batches import VECTOR, policy_input, random_batch
from tidemill.rl.agents.dqn import DQNAgent, DQNPolicy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.exploration import ActorSlot, EpsilonGreedy
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec

CPU = torch.device("cpu")
CHAIN = EnvSpec((3,), "float32", num_actions=2)


def chain_batch() -> dict[str, torch.Tensor]:
    """Return every transition of a chain of three states, one-hot observations.

    Action 1 moves right; from state 2 it ends the episode with reward 1. Action 0 stays, with reward .1 in
    state 0 and 0 elsewhere.
    """
    states = torch.eye(3)
    return {
        "observation": states.repeat_interleave(2, dim=0),
        "action": torch.tensor([0, 1] * 3),
        "n_step_return": torch.tensor([0.1, 0.0, 0.0, 0.0, 0.0, 1.0]),
        "bootstrap_discount": torch.tensor([0.5, 0.5, 0.5, 0.5, 0.5, 0.0]),
        "bootstrap_observation": states[[0, 1, 1, 2, 2, 2]],
    }


def test_hard_target_changes_only_every_target_update_period() -> None:
    """After the third update the target is the network; before it, what it was at the start."""
    agent = DQNAgent(DQNConfig(network="mlp", hidden_sizes=(8,), target_update_period=3), VECTOR, CPU, seed=0)
    start = {name: value.clone() for name, value in agent.state_dict()["target"].items()}
    for number in range(1, 4):
        agent.update(random_batch(VECTOR, 4, torch.Generator().manual_seed(number)), torch.ones(4))
        expected = agent.state_dict()["online"] if number == 3 else start
        for name, value in agent.state_dict()["target"].items():
            assert torch.equal(value, expected[name])


def test_gradient_is_clipped_to_its_norm() -> None:
    """A limit of 1e-3 on the norm makes the first Adam moment that small; the metric is the norm before."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), max_grad_norm=1e-3)
    agent = DQNAgent(config, VECTOR, CPU, seed=0)
    batch = random_batch(VECTOR, 4, torch.Generator().manual_seed(1))
    update = agent.update(batch | {"n_step_return": torch.full((4,), 100.0)}, torch.ones(4))
    mean = agent.state_dict()["optimizer"]["mean"]
    norm = torch.linalg.vector_norm(torch.cat([tensor.flatten() for tensor in mean.values()]))
    torch.testing.assert_close(norm, torch.tensor(1e-4), rtol=1e-3, atol=0.0)  # (1 - beta1) * 1e-3
    assert update.metrics["grad_norm"] > 1.0


def test_epsilon_of_the_ladder_is_the_share_of_random_actions() -> None:
    """The first rung, epsilon 1, is uniform over all actions; the last, about 0, is greedy."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), ladder_base=1.0, ladder_alpha=0.0)
    uniform = DQNPolicy(config, VECTOR, PolicyContext(CPU, 0, ActorSlot(num_envs=4_000)))
    observation = np.zeros((4_000, 3), dtype=np.float32)
    share = np.bincount(uniform.act(policy_input(observation), 0).action, minlength=4) / 4_000
    np.testing.assert_allclose(share, 0.25, atol=0.03)
    greedy = DQNConfig(network="mlp", hidden_sizes=(8,), ladder_base=1e-9)
    policy = DQNPolicy(greedy, VECTOR, PolicyContext(CPU, 0, ActorSlot(num_envs=4_000)))
    np.testing.assert_array_equal(
        policy.act(policy_input(observation), 0).action, policy.act(policy_input(observation), evaluation=True).action
    )


def test_schedule_gives_all_environments_the_epsilon_of_the_clusters_step() -> None:
    """Half way from 1 to .01 it is .505 for each."""
    config = DQNConfig(network="mlp", exploration="schedule", epsilon_decay_steps=1_000)
    chance = EpsilonGreedy(config, ActorSlot(), seed=0)
    np.testing.assert_allclose(chance.epsilon(500, num_envs=3), [0.505] * 3)
