"""PQN: its targets by hand and step by step, and its update against torch's own layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.batches import policy_input
from tests.support.naming import naming
from tests.unit.rl.test_dqn import CHAIN, CPU, chain_batch
from tests.unit.rl.test_on_policy import DISCRETE, STEPS, STREAMS, rollout
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.pqn import PQNAgent, lambda_target, q_loss
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.types import EnvSpec

LAMBDA = 0.6


def test_target_by_hand() -> None:
    """With lambda .5, gamma .5: the last step 3 + .5 * 4 = 5, the one before 1 + .5 * (.5 * 5 + .5 * 2) = 2.75."""
    q = torch.tensor([[[9.0, 0.0]], [[2.0, 1.0]], [[-1.0, 4.0]]])
    reward, discount = torch.tensor([[1.0], [3.0]]), torch.full((2, 1), 0.5)
    continues = torch.ones((2, 1), dtype=torch.bool)
    assert lambda_target(q, None, reward, discount, continues, 0.5).flatten().tolist() == [2.75, 5.0]
    only_first = torch.tensor([True, False]).expand(3, 1, 2)
    assert lambda_target(q, only_first, reward, discount, continues, 0.5).flatten().tolist() == [2.125, 2.5]


def reference_targets(q: Tensor, batch: dict[str, Tensor]) -> np.ndarray:
    """Return the targets of a rollout [B, T], one at a time."""
    best = q.amax(dim=2).tolist()
    target = np.zeros((STREAMS, STEPS))
    for b in range(STREAMS):
        for t in range(STEPS - 1, -1, -1):
            following = best[b][t + 1]
            if batch["continues"][b, t] and t + 1 < STEPS:
                following = LAMBDA * target[b, t + 1] + (1.0 - LAMBDA) * best[b][t + 1]
            target[b, t] = float(batch["reward"][b, t]) + float(batch["discount"][b, t]) * following
    return target


class Reference(nn.Module):
    """The network of torch's own layers."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.hidden, self.norms, self.head = nn.ModuleList([nn.Linear(3, 8)]), nn.ModuleList(), nn.Linear(8, 4)
        self.norms.append(nn.LayerNorm(8))
        self.load_state_dict(parameters)

    def forward(self, observation: Tensor) -> Tensor:
        """Return Q."""
        q: Tensor = self.head(torch.relu(self.norms[0](self.hidden[0](observation))))
        return q


def test_update_equals_an_independent_implementation() -> None:
    """Targets, and the gradient of one step over a fixed rollout that holds a termination and a truncation."""
    config = PQNConfig(hidden_sizes=(8,), unroll=STEPS, trace_decay=LAMBDA, epochs=1, minibatches=1, max_grad_norm=0.0)
    agent, batch = PQNAgent(config, DISCRETE, CPU, seed=3), rollout(DISCRETE)
    network = Reference(agent.policy_state())
    target = reference_targets(network(batch["observation"]).detach(), batch)
    found, _ = agent.targets({name: column.transpose(0, 1) for name, column in batch.items()})
    np.testing.assert_allclose(found.T.numpy(), target, rtol=1e-4, atol=1e-5)
    losses = []
    for b, t in np.ndindex(STREAMS, STEPS):
        if batch["is_trained"][b, t]:
            chosen = network(batch["observation"][b, t])[batch["action"][b, t]]
            losses.append(0.5 * (chosen - float(target[b, t])) ** 2)
    assert len(losses) == STREAMS * STEPS - 1
    loss = torch.stack(losses).mean()
    expected = torch.autograd.grad(loss, list(network.parameters()))
    metrics = agent.update(batch, torch.ones(STREAMS)).metrics
    assert float(metrics["loss"]) == pytest.approx(float(loss.detach()), rel=1e-4)
    mean = agent.state_dict()["optimizer"]["mean"]  # a tenth of the first gradient
    for i, gradient in enumerate(expected):
        torch.testing.assert_close(10.0 * mean[str(i)], gradient, rtol=1e-3, atol=1e-6)


def test_loss_counts_what_is_trained_on() -> None:
    """The mean of half the squares 1 and 9, weighed 1 and 2; a step of weight 0 takes no part, nor do none at all."""
    chosen, target = torch.tensor([1.0, 3.0, 50.0]), torch.zeros(3)
    assert float(q_loss(chosen, target, torch.tensor([1.0, 2.0, 0.0]))) == pytest.approx(9.5 / 3.0)
    assert float(q_loss(chosen, target, torch.zeros(3))) == 0.0


def test_agent_finds_the_optimal_values_of_a_small_mdp() -> None:
    """With gamma .5, by hand: Q* = [[.225, .25], [.25, .5], [.5, 1]], without a target network."""
    config = PQNConfig(hidden_sizes=(32,), unroll=1, epochs=1, minibatches=1, learning_rate=3e-3, gamma=0.5)
    agent, chain = PQNAgent(config, CHAIN, CPU, seed=0), chain_batch()
    batch = {
        "observation": torch.stack((chain["observation"], chain["bootstrap_observation"]), dim=1),
        "action": chain["action"][:, None].expand(-1, 2),
        "reward": chain["n_step_return"][:, None],
        "discount": chain["bootstrap_discount"][:, None],
        "continues": torch.zeros((6, 1), dtype=torch.bool),
        "is_trained": torch.ones((6, 1), dtype=torch.bool),
    }
    for _ in range(600):
        agent.update(batch, torch.ones(6))
    with torch.no_grad():
        q = agent.network(torch.eye(3))
    torch.testing.assert_close(q, torch.tensor([[0.225, 0.25], [0.25, 0.5], [0.5, 1.0]]), atol=0.02, rtol=0)


def test_policy_explores_by_its_schedule() -> None:
    """All actions are random at first, a share of epsilon_final in the end, and none in evaluation."""
    config = PQNConfig(hidden_sizes=(8,), epsilon_final=0.2, epsilon_decay_steps=100)
    policy, count = build_policy(config, DISCRETE, seed=1), 8_000
    seen = policy_input(np.full((count, 3), 0.3, np.float32))
    best = policy.act(seen, 100, evaluation=True).action
    assert (best == best[0]).all()
    assert (policy.act(seen, 0).action != best).mean() == pytest.approx(0.75, abs=0.03)
    assert (policy.act(seen, 100).action != best).mean() == pytest.approx(0.2 * 0.75, abs=0.03)


def test_continuous_actions_are_refused() -> None:
    """By the name of what fits."""
    with pytest.raises(ConfigError, match=naming("'pqn' continuous sac")):
        PQNConfig().validate_env(EnvSpec((3,), "float32", action_shape=(2,)))
