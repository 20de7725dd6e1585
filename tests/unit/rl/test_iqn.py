"""Implicit quantiles: the embedding by hand, the network written out, and the quantiles of a known distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input
from tests.support.naming import naming
from tests.unit.rl.test_dqn import CHAIN, CPU, chain_batch
from tidemill.errors import ConfigError
from tidemill.rl import losses
from tidemill.rl.agents.dqn import DQNAgent, DQNPolicy, QuantileEmbedding, build_network
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.networks.layers.noisy import reset_noise
from tidemill.rl.settings.q_learning import DQNConfig

SMALL = DQNConfig(network="mlp", hidden_sizes=(16,), distribution="iqn", atoms=8, cosines=12)


def test_levels_are_described_by_cosines() -> None:
    """Of level 1/3 the cosines of 0 and pi/3 are 1 and 1/2: 2 * 1 + 4 * .5 - 1 = 3 times the feature 5 is 15."""
    embedding = QuantileEmbedding(1, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        embedding.layer.weight.copy_(torch.tensor([[2.0, 4.0]]))
        embedding.layer.bias.fill_(-1.0)
    made = embedding(torch.tensor([[5.0]]), torch.tensor([[1.0 / 3.0, 1.0]]))
    torch.testing.assert_close(made, torch.tensor([[[15.0], [0.0]]]))  # of level 1: relu(2 - 4 - 1)


def test_loss_of_drawn_levels_by_hand() -> None:
    """Prediction 0 of level .9 and 4 of level .2 against 1 and 2: .9 * (.5 + 1.5) / 2 and .8 * (2.5 + 1.5) / 2."""
    level = torch.tensor([[0.9, 0.2]])
    item = losses.quantile_huber_loss(torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]]), 1.0, level)
    torch.testing.assert_close(item.loss, torch.tensor([0.9 + 1.6]))
    torch.testing.assert_close(item.priority, torch.tensor([0.5]))


@pytest.mark.parametrize("dueling", [True, False])
def test_network_is_the_papers_written_out(dueling: bool) -> None:
    """Each level's features go through the head by themselves."""
    config = DQNConfig(network="mlp", hidden_sizes=(16,), distribution="iqn", atoms=8, cosines=12, dueling=dueling)
    network = build_network(config, CHAIN, seed=0)
    assert network.embedding is not None
    observation, level = torch.eye(3), torch.rand((3, 5), generator=torch.Generator().manual_seed(1))
    output = network(observation, level)
    assert output.shape == (3, CHAIN.num_actions, 5)
    for row in range(3):
        for column in range(5):
            waves = torch.tensor([math.cos(math.pi * i * float(level[row, column])) for i in range(12)])
            features = observation[row] * torch.relu(network.embedding.layer(waves))
            head = network.head
            q = head.action.output(torch.relu(head.action.hidden(features)))
            if head.state is not None:
                q = head.state.output(torch.relu(head.state.hidden(features))) + q - q.mean()
            torch.testing.assert_close(output[row, :, column], q)


def test_levels_are_even_where_none_are_asked_for() -> None:
    """So that acting and evaluation draw nothing."""
    network = build_network(SMALL, CHAIN, seed=0)
    even = torch.tensor([1, 3, 5, 7, 9, 11, 13, 15]).div(16).expand(3, -1)
    torch.testing.assert_close(network(torch.eye(3)), network(torch.eye(3), even))


def test_noise_of_an_environment_is_the_same_for_all_its_levels() -> None:
    """Each row of a batch has separate noise, and its output does not depend on the other rows."""
    config = DQNConfig(network="mlp", hidden_sizes=(16,), distribution="iqn", atoms=8, cosines=12, noisy=True)
    network = build_network(config, CHAIN, seed=0).requires_grad_(False)
    same = torch.ones((2, 3))
    reset_noise(network, torch.Generator().manual_seed(0), rows=2)
    both = network(same)
    assert not torch.equal(both[0], both[1])
    level = torch.full((2, 4), 0.3)
    quantiles = network(same, level)
    torch.testing.assert_close(quantiles, quantiles[:, :, :1].expand(-1, -1, 4))


def test_quantiles_of_a_known_distribution_are_found() -> None:
    """Rewards of 0, 8 and 32, a third each, that end the episode: below level 1/3 it is 0, in the middle 8, above 32.

    The Huber loss rounds the corners within 1 of a value.
    """
    config = DQNConfig(
        network="mlp",
        hidden_sizes=(64,),
        distribution="iqn",
        atoms=16,
        cosines=32,
        dueling=False,
        learning_rate=1e-2,
        learning_rate_decay_updates=700,
        max_grad_norm=0.0,
        optimizer_epsilon=1e-5,
        target_update_period=10**6,
    )
    agent = DQNAgent(config, CHAIN, CPU, seed=0)
    batch = {
        "observation": torch.eye(3)[:1].expand(48, -1).contiguous(),
        "action": torch.zeros(48, dtype=torch.int64),
        "n_step_return": torch.tensor([0.0, 8.0, 32.0]).repeat(16),
        "bootstrap_discount": torch.zeros(48),
        "bootstrap_observation": torch.eye(3)[:1].expand(48, -1).contiguous(),
    }
    for _ in range(600):
        agent.update(batch, torch.ones(48))
    learned = build_network(config, CHAIN, seed=0)
    learned.load_state_dict(agent.state_dict()["online"])
    with torch.no_grad():
        found = learned(torch.eye(3)[:1], torch.tensor([[0.1, 0.5, 0.9]]))[0, 0]
    np.testing.assert_allclose(found.numpy(), [0.0, 8.0, 32.0], atol=1.5)


def test_each_update_draws_levels_and_acting_does_not() -> None:
    """The same batch from one state gives other losses; the same observation the same action."""
    agent = DQNAgent(SMALL, CHAIN, CPU, seed=0)
    first, second = (agent.update(chain_batch(), torch.zeros(6)).metrics["loss"] for _ in range(2))
    priority = [agent.update(chain_batch(), torch.zeros(6)).priority for _ in range(2)]
    assert first == second == 0.0  # weight 0 moves nothing
    assert not torch.equal(*priority)
    policy = DQNPolicy(SMALL, CHAIN, PolicyContext(CPU, 0, ActorSlot(num_envs=3)))
    policy.load(agent.policy_state())
    seen = policy_input(np.eye(3, dtype=np.float32))
    assert policy.act(seen, evaluation=True).action.tolist() == policy.act(seen, evaluation=True).action.tolist()


def test_resumed_agent_draws_what_the_first_would_have() -> None:
    """The generator of levels is part of the state."""
    agent, other = (DQNAgent(SMALL, CHAIN, CPU, seed=seed) for seed in (0, 1))
    agent.update(chain_batch(), torch.ones(6))
    other.load_state_dict(agent.state_dict())
    one, two = (each.update(chain_batch(), torch.ones(6)) for each in (agent, other))
    assert torch.equal(one.priority, two.priority)


@pytest.mark.parametrize("extra, word", [({"compile": "default"}, "iqn"), ({"loss": "math:fsum"}, "levels")])
def test_what_drawn_levels_do_not_go_with_is_refused(extra: dict[str, str], word: str) -> None:
    """Compiled passes, between which nothing is drawn, and a user's loss, which knows no levels."""
    with pytest.raises(ConfigError, match=naming(word)):
        DQNConfig(distribution="iqn", **extra)  # type: ignore[arg-type]
