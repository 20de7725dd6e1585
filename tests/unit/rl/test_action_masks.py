"""Action masks in acting, targets and distributions, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import SMALL_R2D2, policy_input
from tests.support.envs import MaskedEnv
from tests.support.playing import play
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.dqn import DQNAgent, build_network, gather_argmax
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.agents.ppo import PPOAgent
from tidemill.rl.agents.r2d2 import R2D2Agent
from tidemill.rl.exploration import greedy, random_legal
from tidemill.rl.networks.actor_critic import build_actor_critic
from tidemill.rl.policy_io import join
from tidemill.rl.sequences import SequenceShape, sequences
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig, PQNConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.transitions import transitions
from tidemill.types import EnvSpec

CPU = torch.device("cpu")
SPEC = EnvSpec((3,), "float32", num_actions=4, masks_actions=True)
SETTINGS = EnvSettings("tests.support.envs:masked", action_mask="info.action_mask")
MASKS = np.array([[True, False, True, False], [False, False, False, True], [True, True, True, True]])

ALGORITHMS: dict[str, AgentConfig] = {
    "dqn": DQNConfig(network="mlp", hidden_sizes=(8,), exploration="schedule", epsilon_final=1.0),
    "dqn_greedy": DQNConfig(network="mlp", hidden_sizes=(8,), exploration="none", noisy=True, distribution="c51"),
    "r2d2": R2D2Config(network="mlp", **SMALL_R2D2, exploration="schedule", epsilon_final=0.5),
    "ppo": PPOConfig(hidden_sizes=(8,)),
    "impala": IMPALAConfig(hidden_sizes=(8,)),
    "ppo_lstm": PPOConfig(lstm_size=8, hidden_sizes=(8,)),
    "impala_lstm": IMPALAConfig(lstm_size=8, hidden_sizes=(8,)),
    "pqn": PQNConfig(hidden_sizes=(8,), epsilon_final=0.5),
}


def test_greedy_and_random_choice_by_hand() -> None:
    """The best legal value counts, however bad; of random ones each legal is as likely as another."""
    q = np.array([[1.0, 9.0, 2.0, 9.0], [9.0, 9.0, 9.0, -5.0], [0.0, 3.0, 1.0, 2.0]], np.float32)
    assert greedy(q, MASKS).tolist() == [2, 3, 1]
    assert greedy(q).tolist() == [1, 0, 1]
    drawn = np.array([random_legal(np.random.default_rng(seed), MASKS) for seed in range(400)])
    assert set(drawn[:, 0]) == {0, 2}
    assert set(drawn[:, 1]) == {3}
    assert set(drawn[:, 2]) == {0, 1, 2, 3}
    assert abs((drawn[:, 0] == 0).mean() - 0.5) < 0.1


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("evaluation", [False, True])
def test_every_policy_acts_legally(name: str, evaluation: bool) -> None:
    """Over many random masks and observations, exploring and not."""
    rng = np.random.default_rng(1)
    policy = build_policy(ALGORITHMS[name], SPEC, seed=2)
    for _ in range(20):
        mask = rng.random((16, 4)) < 0.4
        mask[np.arange(16), rng.integers(4, size=16)] = True
        seen = policy_input(
            rng.normal(size=(16, 3)).astype(np.float32), recurrent_state_size=policy.recurrent_state_size
        )
        action = policy.act(replace(seen, action_mask=mask), evaluation=evaluation).action
        assert mask[np.arange(16), action].all()


def _stream() -> dict[str, np.ndarray[Any, Any]]:
    """Return 6 rows of one stream; row 2 is truncated and row 3 its final observation; masks count in binary."""
    return {
        "observation": np.arange(18, dtype=np.float32).reshape(6, 3),
        "action": np.array([0, 1, 2, 3, 0, 1]),
        "reward": np.ones(6, np.float32),
        "terminated": np.zeros(6, np.bool_),
        "truncated": np.array([False, False, True, False, False, False]),
        "is_first": np.array([True, False, False, False, True, False]),
        "action_mask": np.array([[n & 1, n & 2, n & 4, n & 8] for n in range(1, 7)], np.bool_),
        "log_prob": np.zeros(6, np.float32),
    }


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_bootstrap_mask_is_that_of_the_step_bootstrapped_from(frame_stack: int) -> None:
    """Two steps from row 0 lead to row 2; from row 1, which meets the truncation, to row 3; stacks do not matter."""
    index = np.array([[0, 1, 2], [1, 2, 3]])
    index = np.concatenate([np.maximum(index[:, :1] - 1, 0), index], axis=1) if frame_stack == 2 else index
    batch = transitions(_stream(), index, frame_stack, 2, 0.9, bootstrap_extras=("action_mask",))
    assert batch["bootstrap_action_mask"].tolist() == [[True, True, False, False], [False, False, True, False]]


def test_sequences_have_the_masks_of_all_rows() -> None:
    """Burn-in, unroll and the rows to bootstrap from, not the history."""
    shape = SequenceShape(frame_stack=1, burn_in=1, unroll=2, n_step=1)
    batch = sequences(_stream(), np.array([[0, 1, 2, 3, 4]]), shape, 0.9, row_extras=("action_mask",))
    assert np.array_equal(batch["action_mask"][0], _stream()["action_mask"][1:5])


def test_argmax_of_targets_by_hand() -> None:
    """The chooser's best legal action is valued, by Q-learning and by double Q-learning."""
    output = torch.tensor([[[1.0], [5.0], [3.0], [9.0]], [[1.0], [5.0], [3.0], [9.0]]])
    chooser = torch.tensor([[4.0, 9.0, 2.0, 9.0], [9.0, 9.0, 9.0, -9.0]])
    legal = torch.from_numpy(MASKS[:2])
    assert gather_argmax(output, chooser, legal).tolist() == [[1.0], [9.0]]
    assert gather_argmax(output, output.squeeze(-1), legal).tolist() == [[3.0], [9.0]]


@pytest.mark.parametrize("double", [True, False])
def test_dqn_target_values_a_legal_action(double: bool) -> None:
    """The priority is |R + discount * Q'(s', a') - Q(s, a)| with the best legal a' of whoever chooses it."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), double=double, target_update_period=100, learning_rate=0.05)
    agent = DQNAgent(config, SPEC, CPU, seed=3)
    rng = torch.Generator().manual_seed(0)
    batch = {
        "observation": torch.randn((3, 3), generator=rng),
        "bootstrap_observation": torch.randn((3, 3), generator=rng),
        "bootstrap_action_mask": torch.from_numpy(MASKS),
        "action": torch.tensor([0, 3, 2]),
        "n_step_return": torch.tensor([1.0, -1.0, 0.5]),
        "bootstrap_discount": torch.tensor([0.9, 0.9, 0.0]),
    }
    for _ in range(5):  # until the target is another network
        agent.update(batch, torch.ones(3))
    state = agent.state_dict()
    online, target = (build_network(config, SPEC, seed=3) for _ in range(2))
    online.load_state_dict(state["online"])
    target.load_state_dict(state["target"])
    with torch.no_grad():
        q, next_q, next_target = (
            network(batch[name]).squeeze(-1).tolist()
            for network, name in (
                (online, "observation"),
                (online, "bootstrap_observation"),
                (target, "bootstrap_observation"),
            )
        )
    expected = []
    for item, action in enumerate([0, 3, 2]):
        legal = [number for number in range(4) if MASKS[item, number]]
        chooser = next_q if double else next_target
        best = max(legal, key=lambda number, row=chooser[item]: row[number])  # type: ignore[misc]
        discount = float(batch["bootstrap_discount"][item])
        expected.append(abs(float(batch["n_step_return"][item]) + discount * next_target[item][best] - q[item][action]))
    np.testing.assert_allclose(agent.update(batch, torch.ones(3)).priority.numpy(), expected, rtol=1e-5)


def test_r2d2_target_values_a_legal_action() -> None:
    """The online network prefers 1, 0 is its best legal action, and the target network values 0."""
    config = R2D2Config(network="mlp", **SMALL_R2D2, value_rescaling=False)
    agent = R2D2Agent(config, SPEC, CPU, seed=0)
    rows, n_step, unroll = config.burn_in + config.unroll + config.n_step, config.n_step, config.unroll
    rng = torch.Generator().manual_seed(4)
    batch = {
        "observation": torch.randn((2, rows, 3), generator=rng),
        "last_action": torch.zeros((2, rows), dtype=torch.int64),
        "last_reward": torch.zeros((2, rows)),
        "is_first": torch.zeros((2, rows), dtype=torch.bool),
        "action_mask": torch.tensor([True, False, True, False]).expand(2, rows, 4),
        "n_step_return": torch.zeros((2, unroll)),
        "bootstrap_discount": torch.ones((2, unroll)),
        "bootstrap": torch.arange(config.burn_in + n_step, rows).expand(2, unroll),
        "recurrent_state": torch.zeros((2, config.recurrent_state_size)),
    }
    steps = {name: batch[name].transpose(0, 1) for name in ("observation", "last_action", "last_reward", "is_first")}
    _, target_q = agent._unrolled(steps, batch["recurrent_state"])
    online_q = torch.tensor([3.0, 9.0, 2.0, 1.0]).expand(unroll + n_step, 2, 4)
    found = agent._targets(batch, online_q, target_q)
    torch.testing.assert_close(found, target_q[n_step:, :, 0])


def test_distribution_over_legal_actions_by_hand() -> None:
    """Two legal actions of logits 0 and log 3: probabilities 1/4 and 3/4, entropy over them alone, no gradient else."""
    network: Any = build_actor_critic(PPOConfig(hidden_sizes=()), SPEC, seed=0)
    with torch.no_grad():
        network.policy[0].weight.zero_()
        network.policy[0].bias.copy_(torch.tensor([0.0, 50.0, math.log(3.0), -50.0]))
    legal = torch.from_numpy(MASKS[:2])
    distribution, _ = network(torch.zeros((2, 3)), legal)
    probability = torch.stack([distribution.log_prob(torch.full((2,), action)).exp() for action in range(4)], dim=1)
    torch.testing.assert_close(probability, torch.tensor([[0.25, 0.0, 0.75, 0.0], [0.0, 0.0, 0.0, 1.0]]))
    assert (probability[0, [1, 3]] == 0.0).all()
    entropy = distribution.entropy()
    torch.testing.assert_close(entropy, torch.tensor([0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0), 0.0]))
    loss = entropy.sum() + distribution.log_prob(torch.tensor([2, 3])).sum()
    gradient = torch.autograd.grad(loss, network.policy[0].bias)[0]
    assert torch.isfinite(gradient).all()
    assert (gradient[[1, 3]] == 0.0).all()
    assert distribution.mode().tolist() == [2, 3]
    rng = torch.Generator().manual_seed(0)
    drawn = torch.stack([distribution.sample(rng) for _ in range(500)])
    assert set(drawn[:, 0].tolist()) == {0, 2}
    assert set(drawn[:, 1].tolist()) == {3}
    assert abs(float((drawn[:, 0] == 2).float().mean()) - 0.75) < 0.08


@pytest.mark.parametrize("agent_class, config_class", [(PPOAgent, PPOConfig), (IMPALAAgent, IMPALAConfig)])
def test_on_policy_loss_uses_the_stored_masks(agent_class: type[Any], config_class: type[Any]) -> None:
    """A masked batch has the entropy of its legal actions; of rows where one action is legal it is 0."""
    agent = agent_class(config_class(hidden_sizes=(8,), unroll=3), SPEC, CPU, 0)
    columns = _stream() | {"action_mask": np.eye(4, dtype=np.bool_)[[0, 1, 2, 3, 0, 1]]}
    index = np.array([[0, 0, 1, 2, 3]])
    batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
    assert batch["action_mask"].shape == (1, 4, 4)
    update = agent.update(batch, torch.ones(1))
    assert float(update.metrics["entropy"]) == 0.0
    assert all(torch.isfinite(value).all() for value in agent.policy_state().values())


def test_inputs_of_several_environments_keep_their_masks() -> None:
    """Joined as the evaluator does."""
    inputs = [replace(policy_input(np.zeros((1, 3), np.float32)), action_mask=MASKS[i : i + 1]) for i in range(2)]
    assert np.array_equal(join(inputs).action_mask, MASKS[:2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config, updates",
    [
        (
            DQNConfig(
                network="mlp",
                hidden_sizes=(16,),
                exploration="schedule",
                epsilon_final=1.0,
                learning_rate=0.01,
                n_step=1,
                target_update_period=20,
            ),
            150,
        ),
        (PPOConfig(hidden_sizes=(16,), unroll=13, learning_rate=0.02, epochs=2, minibatches=2), 12),
        (PPOConfig(lstm_size=16, unroll=13, learning_rate=0.02, epochs=2, minibatches=2), 12),
    ],
    ids=["dqn", "ppo", "ppo_lstm"],
)
def test_agent_learns_the_best_legal_actions(config: Any, updates: int) -> None:  # noqa: ANN401 - either's settings
    """Return 6 of 6 in evaluation; the environment fails at the first illegal action."""
    spec = spec_of(SETTINGS)
    agent: Agent = build_agent(config, spec, seed=0)
    policy = build_policy(config, spec, seed=1)
    rows, num_envs, length = 14, 8, agent.window.length
    starts = (np.arange(num_envs)[:, None] * rows + np.arange(max(rows - length + 1, 1))).reshape(-1, 1)
    index = np.minimum(starts + np.arange(length), starts // rows * rows + rows - 1)
    if isinstance(config, PPOConfig):  # its window begins with the row before the first
        index = np.concatenate([index[:, :1], index[:, :-1]], axis=1)
    columns = play(SETTINGS, policy, rows, num_envs)
    for _ in range(updates):
        if isinstance(config, PPOConfig):
            columns = play(SETTINGS, policy, rows, num_envs)
        batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
        if agent.recurrent_state_size:
            batch["recurrent_state"] = torch.from_numpy(columns["recurrent_state"][index[:, 1]])
        agent.update(batch, torch.ones(len(index)))
        policy.load(agent.policy_state())
    played = play(SETTINGS, policy, MaskedEnv.LENGTH, 2, evaluation=True)
    assert played["reward"].sum() == 2 * MaskedEnv.LENGTH
