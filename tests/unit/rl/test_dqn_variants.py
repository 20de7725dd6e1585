"""Every switch of the Q family: together they find a known Q*, apart they do what they say."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import IMAGE, VECTOR, policy_input, random_batch
from tests.unit.rl.test_dqn import CHAIN, CPU, chain_batch
from tidemill.rl.agents.dqn import DQNAgent, DQNPolicy, build_network
from tidemill.rl.agents.dqn_heads import ValueHead, build_value_head
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.networks.layers.noisy import disable_noise
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec

STATES = np.eye(3, dtype=np.float32)
BEST = [0.25, 0.5, 1.0]
"""Value of each state of the chain, by hand, with gamma .5: see `chain_batch`."""

_DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    # the atoms 0, .25, .5, .75 and 1 hold every return of the best policy, so the projection of its values is exact
    "c51": {"distribution": "c51", "atoms": 5, "value_min": 0.0, "value_max": 1.0},
    "qr": {"distribution": "qr", "atoms": 5},
}
_DRAWN_LEVELS: dict[str, Any] = {"distribution": "iqn", "atoms": 5, "cosines": 16}


def three_step_batch() -> dict[str, torch.Tensor]:
    """Return the chain's transitions with the best actions followed for up to three steps.

    From state s the action taken is s's item of the one-step batch; what follows it is action 1 until the end or
    until three rewards are summed, so that a window bootstraps only where three steps do not end the episode.
    """
    batch = chain_batch()
    following = batch["bootstrap_observation"].argmax(dim=1).tolist()
    returns, discounts, last = [], [], []
    for reward, discount, state in zip(
        batch["n_step_return"].tolist(), batch["bootstrap_discount"].tolist(), following, strict=True
    ):
        total, factor, place = reward, discount, state
        for _ in range(2):
            if factor:
                total += factor * (1.0 if place == 2 else 0.0)
                factor, place = (0.0, place) if place == 2 else (factor * 0.5, place + 1)
        returns.append(total)
        discounts.append(factor)
        last.append(place)
    return batch | {
        "n_step_return": torch.tensor(returns),
        "bootstrap_discount": torch.tensor(discounts),
        "bootstrap_observation": torch.eye(3)[last],
    }


def _updates(distribution: str, noisy: bool) -> int:
    """Return how many updates bring the chain's values to rest: draws of levels and of noise average out slowly."""
    if distribution == "iqn":
        return 900 if noisy else 450
    return 350 if noisy and distribution != "c51" else 200


_VARIANTS = [
    (*switches, distribution, 3 if sum(switches) % 2 == 0 or (distribution == "iqn" and switches[2]) else 1)
    for number, distribution in enumerate([*_DISTRIBUTIONS, "iqn"])
    for switches in itertools.product((False, True), repeat=3)
    if sum(switches[1:]) % 2 == number % 2
]
"""Half of all combinations: any two of switches, distribution and length of windows meet in each of their values.

Noise with drawn levels, which takes the most updates, has windows of three steps alone.
"""


@pytest.mark.parametrize("double,dueling,noisy,distribution,steps", _VARIANTS)
def test_every_variant_reaches_the_optimal_values_of_a_small_mdp(
    double: bool, dueling: bool, noisy: bool, distribution: str, steps: int
) -> None:
    """Whatever switches are on, Q* of the chain's states is .25, .5 and 1, and its best action always 1."""
    updates = _updates(distribution, noisy)
    config = DQNConfig(
        network="mlp",
        hidden_sizes=(32,),
        double=double,
        dueling=dueling,
        noisy=noisy,
        learning_rate=1e-2,
        learning_rate_decay_updates=updates + 100 if distribution == "iqn" else 0,  # the draws continue
        optimizer_epsilon=1e-5,
        target_update_period=20,
        loss="mse",
        gamma=0.5,
        n_step=steps,
        **(_DISTRIBUTIONS | {"iqn": _DRAWN_LEVELS})[distribution],
    )
    agent = DQNAgent(config, CHAIN, CPU, seed=0)
    batch = chain_batch() if steps == 1 else three_step_batch()
    for _ in range(updates):
        agent.update(batch, torch.ones(6))
    policy = DQNPolicy(config, CHAIN, PolicyContext(CPU, 0, ActorSlot(num_envs=3)))
    policy.load(agent.policy_state())
    assert policy.act(policy_input(STATES), evaluation=True).action.tolist() == [1, 1, 1]
    np.testing.assert_allclose(policy.q_values(STATES).max(axis=1), BEST, atol=0.05 if noisy else 0.03)


@pytest.mark.parametrize(
    "target", [{"target_update_period": 0, "tau": 0.2}, {"target_update_period": 10}], ids=["soft", "hard"]
)
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_every_optimizer_loss_and_target_reaches_the_optimal_values(
    target: dict[str, Any], optimizer: str, loss: str
) -> None:
    """The same chain, with plain values."""
    config = DQNConfig(
        network="mlp",
        hidden_sizes=(32,),
        learning_rate=3e-3 if optimizer == "adam" else 1e-3,
        optimizer=optimizer,  # type: ignore[arg-type]
        optimizer_epsilon=1e-5,
        loss=loss,
        gamma=0.5,
        n_step=1,
        **target,
    )
    agent = DQNAgent(config, CHAIN, CPU, seed=0)
    for _ in range(400):
        agent.update(chain_batch(), torch.ones(6))
    policy = DQNPolicy(config, CHAIN, PolicyContext(CPU, 0, ActorSlot(num_envs=3)))
    policy.load(agent.policy_state())
    np.testing.assert_allclose(policy.q_values(STATES).max(axis=1), BEST, atol=0.02)


def test_soft_target_takes_over_its_share_at_each_update() -> None:
    """With tau 1/4 and a start at the network's own parameters, the target is 3/4 old and 1/4 new."""
    config = DQNConfig(network="mlp", hidden_sizes=(8,), target_update_period=0, tau=0.25)
    agent = DQNAgent(config, CHAIN, CPU, seed=0)
    start = {name: value.clone() for name, value in agent.state_dict()["target"].items()}
    agent.update(chain_batch(), torch.ones(6))
    state = agent.state_dict()
    for name, value in state["target"].items():
        torch.testing.assert_close(value, 0.75 * start[name] + 0.25 * state["online"][name])


def test_double_values_with_the_target_what_the_online_network_chose() -> None:
    """With equal networks double makes no difference; once they differ it never raises the target."""
    batch = chain_batch()
    online, target = [], []
    for double in (True, False):
        config = DQNConfig(network="mlp", hidden_sizes=(8,), double=double, target_update_period=10**6, loss="mse")
        agent = DQNAgent(config, CHAIN, CPU, seed=0)
        online.append(agent.bootstrap_values(batch["bootstrap_observation"], None))
        for _ in range(50):
            agent.update(batch, torch.ones(6))
        target.append(agent.bootstrap_values(batch["bootstrap_observation"], None))
    torch.testing.assert_close(online[0], online[1])
    assert (target[0] <= target[1] + 1e-6).all()


def test_noise_is_drawn_for_each_update_and_none_is_left_in_evaluation() -> None:
    """Two updates on one batch from one state differ by their noise; greedy actions repeat; exploring ones do not."""
    spec = EnvSpec((3,), "float32", num_actions=6)
    config = DQNConfig(network="mlp", hidden_sizes=(16,), noisy=True, exploration="none")
    agent = DQNAgent(config, spec, CPU, seed=0)
    first, second = (agent.update(chain_batch(), torch.zeros(6)).priority for _ in range(2))  # weight 0 moves nothing
    assert not torch.equal(first, second)
    policy = DQNPolicy(config, spec, PolicyContext(CPU, 0, ActorSlot(num_envs=200)))
    policy.load(agent.policy_state())
    observation = np.zeros((200, 3), dtype=np.float32)
    explored = policy.act(policy_input(observation), 0).action
    assert len(np.unique(explored)) > 1, "each environment has noise of its own"
    assert len(np.unique(policy.act(policy_input(observation), evaluation=True).action)) == 1
    assert not np.array_equal(policy.act(policy_input(observation), 0).action, explored)


@pytest.mark.parametrize("double", [True, False])
def test_quiet_targets_are_those_of_the_mean_weights(double: bool) -> None:
    """Without noise two targets on one batch are one, that of the quiet network; with it they differ."""
    batch, bootstrap = chain_batch(), chain_batch()["bootstrap_observation"]
    plain = DQNConfig(network="mlp", hidden_sizes=(16,), noisy=True, double=double)
    noisy, quiet = (DQNAgent(dataclasses.replace(plain, noisy_target=on), CHAIN, CPU, 0) for on in (True, False))
    assert not torch.equal(noisy.bootstrap_values(bootstrap, None), noisy.bootstrap_values(bootstrap, None))
    target = build_network(plain, CHAIN, seed=0)
    target.load_state_dict(quiet.state_dict()["target"])
    disable_noise(target)
    values = target(bootstrap).squeeze(-1)
    assert torch.equal(
        quiet.bootstrap_values(bootstrap, None).squeeze(-1), values.max(dim=1).values
    )  # online and target are equal
    first, second = (quiet.update(batch, torch.zeros(6)).priority for _ in range(2))
    assert not torch.equal(first, second), "predictions keep their noise"


def _random_values(config: DQNConfig, rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn((*shape, config.values_per_action), generator=rng)


@pytest.mark.parametrize(
    "distribution,munchausen,env_spec",
    [
        *((kind, 0.0, VECTOR) for kind in _DISTRIBUTIONS),
        ("none", 0.0, IMAGE),
        ("none", 0.9, VECTOR),
        ("qr", 0.9, VECTOR),
    ],
)
@pytest.mark.parametrize("ends", ["nowhere", "terminated", "truncated"])
def test_actors_initial_priority_equals_the_learners_whatever_the_values(
    distribution: str, munchausen: float, env_spec: EnvSpec, ends: str
) -> None:
    """On the same parameters the actor's priority of a window is what the learner's update reports."""
    soft = {"double": False, "munchausen_scale": munchausen} if munchausen else {}
    kind = _DISTRIBUTIONS[distribution] | soft
    network = "mlp" if env_spec is VECTOR else "nature"
    config = DQNConfig(network=network, hidden_sizes=(16,), n_step=3, gamma=0.9, update_precision="float32", **kind)
    agent = DQNAgent(config, env_spec, CPU, seed=0)
    policy = DQNPolicy(config, env_spec, PolicyContext(CPU, 1, ActorSlot(num_envs=5)))
    policy.load(agent.policy_state())
    rng = torch.Generator().manual_seed(5)
    seen = [random_batch(env_spec, 5, rng)["observation"] for _ in range(4)]
    decisions = [policy.act(policy_input(observation.numpy()), 0) for observation in seen]
    inputs = ("chosen", "best", "bonus") if munchausen else ("chosen", "best")
    steps = {name: np.stack([d.priority_inputs[name] for d in decisions]) for name in inputs}
    reward = torch.randn((4, 5), generator=rng).numpy()
    end = np.zeros((4, 5), dtype=bool)
    end[1] = True  # the second step: two rewards are summed, and the third row is the final one
    steps |= {"reward": reward, "terminated": end & (ends == "terminated"), "truncated": end & (ends == "truncated")}
    summed = 3 if ends == "nowhere" else 2
    batch = {
        "observation": seen[0],
        "action": torch.from_numpy(decisions[0].action),
        "n_step_return": torch.from_numpy(sum(0.9**k * reward[k] for k in range(summed))),
        "bootstrap_discount": torch.full((5,), 0.0 if ends == "terminated" else 0.9**summed),
        "bootstrap_observation": seen[summed],
    }
    learned = agent.update(batch, torch.ones(5)).priority
    assert learned.max() > 0.0
    np.testing.assert_allclose(policy.initial_priority(steps), learned.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", list(_DISTRIBUTIONS))
def test_perfect_prediction_has_priority_0(distribution: str) -> None:
    """A terminal reward of .5 that was predicted with certainty surprises nobody."""
    config = DQNConfig(**_DISTRIBUTIONS[distribution])
    values: ValueHead = build_value_head(config, CPU)
    taken = torch.full((1, config.values_per_action), 0.5)
    if distribution == "c51":
        taken = torch.tensor([[-100.0, -100.0, 100.0, -100.0, -100.0]])
    torch.testing.assert_close(values.mean(taken), torch.tensor([0.5]))
    following = _random_values(config, torch.Generator().manual_seed(0), 1)
    item = values.loss(taken, torch.tensor([0.5]), torch.tensor([0.0]), following)
    torch.testing.assert_close(item.priority, torch.tensor([0.0]))
