"""SAC for discrete actions: its losses by hand, and the soft values that an independent iteration finds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input
from tests.support.distribution import fits
from tests.unit.rl.test_dqn import CHAIN, CPU, chain_batch
from tidemill.errors import ConfigError
from tidemill.rl.agents import sac_discrete
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.sac_discrete import SACDiscreteAgent, SACDiscretePolicy, build_actor, build_critic
from tidemill.rl.settings.soft_actor_critic import SACDiscreteConfig
from tidemill.types import EnvSpec

LOG_PROB = torch.tensor([[0.25, 0.75]]).log()
Q = torch.tensor([[[4.0, 2.0]], [[8.0, 0.0]]])
"""Of two critics, whose smaller values are 4 and 0: 1/4 * 4 + 3/4 * 0 = 1 under the policy."""
ENTROPY = 0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0)


def test_entropy_is_torchs() -> None:
    """And 0 for the certain choice of one action, whatever is not legal."""
    logits = torch.randn((5, 4), generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(sac_discrete.entropy(sac_discrete.log_policy(logits, None)), expected)
    only = torch.tensor([[False, True, False, False]]).expand(5, -1)
    torch.testing.assert_close(sac_discrete.entropy(sac_discrete.log_policy(logits, only)), torch.zeros(5))


def test_target_by_hand() -> None:
    """2 + .5 * (1 + .1 * H)."""
    target = sac_discrete.soft_target(torch.tensor([2.0]), torch.tensor([0.5]), Q, LOG_PROB, torch.tensor(0.1))
    torch.testing.assert_close(target, torch.tensor([2.0 + 0.5 * (1.0 + 0.1 * ENTROPY)]))


def test_actors_loss_by_hand_and_its_gradient() -> None:
    """-.1 * H - 1; it is least at softmax(min Q / temperature), to which gradient descent goes."""
    torch.testing.assert_close(
        sac_discrete.actor_loss(Q, LOG_PROB, torch.tensor(0.1)), torch.tensor(-0.1 * ENTROPY - 1.0)
    )
    logits = torch.zeros((1, 2), requires_grad=True)
    for _ in range(400):
        value = sac_discrete.actor_loss(Q, sac_discrete.log_policy(logits, None), torch.tensor(2.0))
        (gradient,) = torch.autograd.grad(value, logits)
        logits = (logits - 0.5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(logits.softmax(dim=1), torch.tensor([[2.0, 0.0]]).softmax(dim=1))


def test_illegal_action_takes_no_part() -> None:
    """Neither its values nor its logit, which gets no gradient, and none is NaN."""
    logits = torch.tensor([[0.0, math.log(3.0), 7.0]], requires_grad=True)
    legal = torch.tensor([[True, True, False]])
    q = torch.cat((Q, torch.full((2, 1, 1), 1e9)), dim=2)
    value = sac_discrete.actor_loss(q, sac_discrete.log_policy(logits, legal), torch.tensor(0.1))
    torch.testing.assert_close(value, torch.tensor(-0.1 * ENTROPY - 1.0))
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0.0


def _soft_values(temperature: float) -> np.ndarray:
    """Return the soft optimal values of the chain, [state, action], by iteration in NumPy."""
    batch = {name: value.numpy().astype(np.float64) for name, value in chain_batch().items()}
    state, action = batch["observation"].argmax(axis=1), batch["action"].astype(int)
    following, q = batch["bootstrap_observation"].argmax(axis=1), np.zeros((3, 2))
    for _ in range(200):
        value = temperature * np.log(np.exp(q / temperature).sum(axis=1))
        q[state, action] = batch["n_step_return"] + batch["bootstrap_discount"] * value[following]
    return q


def test_agent_finds_the_soft_optimal_values_and_their_policy() -> None:
    """With a fixed temperature Q is that of soft value iteration, and the policy its softmax."""
    config = SACDiscreteConfig(
        hidden_sizes=(32,),
        learning_rate=1e-2,
        learning_rate_decay_updates=1_000,
        optimizer_epsilon=1e-5,
        gamma=0.5,
        tau=0.1,
        temperature="fixed",
        initial_temperature=0.3,
    )
    agent = SACDiscreteAgent(config, CHAIN, CPU, seed=0)
    for _ in range(900):
        agent.update(chain_batch(), torch.ones(6))
    expected = torch.from_numpy(_soft_values(0.3)).float()
    states, rng, learned = torch.eye(3), torch.Generator(), agent.state_dict()
    critic, actor = build_critic(config, CHAIN, rng), build_actor(config, CHAIN, rng)
    critic.load_state_dict(learned["critic"])
    actor.load_state_dict(learned["actor"])
    with torch.no_grad():
        q, policy = critic(states), actor(states)[0].softmax(dim=1)
    torch.testing.assert_close(q, expected.expand(2, -1, -1), atol=0.03, rtol=0)
    torch.testing.assert_close(policy, (expected / 0.3).softmax(dim=1), atol=0.03, rtol=0)


@pytest.mark.parametrize("share, masks", [(0.5, False), (0.9, False), (0.9, True)])
def test_learned_temperature_holds_the_entropy_at_its_share(share: float, masks: bool) -> None:
    """Of log 4, or of log 2 where two of the four actions are legal."""
    spec = EnvSpec((3,), "float32", num_actions=4)
    config = SACDiscreteConfig(hidden_sizes=(32,), learning_rate=1e-2, target_entropy_share=share, gamma=0.0)
    agent = SACDiscreteAgent(config, spec, CPU, seed=0)
    rng = torch.Generator().manual_seed(0)
    batch = {
        "observation": torch.eye(3)[torch.arange(96) % 3],
        "action": torch.randint(2 if masks else 4, (96,), generator=rng),
        "bootstrap_discount": torch.zeros(96),
        "bootstrap_observation": torch.eye(3)[torch.arange(96) % 3],
    }
    batch["n_step_return"] = 0.5 * batch["action"]
    if masks:
        legal = torch.tensor([True, True, False, False]).expand(96, -1)
        batch |= {"action_mask": legal, "bootstrap_action_mask": legal}
    for _ in range(400):
        entropy = agent.update(batch, torch.ones(96)).metrics["entropy"]
    assert float(entropy) == pytest.approx(share * math.log(2.0 if masks else 4.0), abs=0.05)


def test_actions_are_drawn_with_the_actors_probabilities() -> None:
    """Random ones at first, then samples; none that is not legal; the likeliest in evaluation."""
    spec = EnvSpec((3,), "float32", num_actions=3)
    config = SACDiscreteConfig(hidden_sizes=(8,), start_steps=10)
    policy, parameters = (
        SACDiscretePolicy(config, spec, PolicyContext(CPU, 0)),
        SACDiscreteAgent(config, spec, CPU, 0).policy_state(),
    )
    policy.load(
        parameters
        | {"actor.stacks.0.1.weight": torch.zeros(3, 8), "actor.stacks.0.1.bias": torch.tensor([0.6, 0.3, 0.1]).log()}
    )
    seen = policy_input(np.zeros((6_000, 3), np.float32))
    assert fits(np.bincount(policy.act(seen, 0).action, minlength=3), [1 / 3] * 3)
    assert fits(np.bincount(policy.act(seen, 10).action, minlength=3), [0.6, 0.3, 0.1])
    masked = dataclasses.replace(seen, action_mask=np.tile([False, True, True], (6_000, 1)))
    assert fits(np.bincount(policy.act(masked, 0).action, minlength=3)[1:], [0.5, 0.5])
    drawn = np.bincount(policy.act(masked, 10).action, minlength=3)
    assert drawn[0] == 0
    assert fits(drawn[1:], [0.75, 0.25])
    assert policy.act(masked, 10, evaluation=True).action.tolist() == [1] * 6_000


def test_continuous_actions_are_refused_by_the_name_of_what_fits() -> None:
    """And discrete ones by `sac`, which names this one."""
    with pytest.raises(ConfigError, match="sac"):
        SACDiscreteConfig().validate_env(EnvSpec((3,), "float32", action_shape=(2,)))
