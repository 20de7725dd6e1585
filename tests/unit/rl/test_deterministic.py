"""DDPG, TD3 and D4PG: losses by hand, what an update moves and what it leaves alone, networks, settings."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import CONTINUOUS, CONTINUOUS_BYTES, policy_input, random_batch
from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.agents import d4pg, ddpg, td3
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor
from tidemill.rl.networks.layers.linear import flat
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.types import EnvSpec

Config = DDPGConfig | TD3Config | D4PGConfig

CASES: dict[str, Config] = {
    "ddpg": DDPGConfig(actor_sizes=(8,), critic_sizes=(8, 8), tau=0.25),
    "td3": TD3Config(hidden_sizes=(8,), tau=0.25),
    "d4pg": D4PGConfig(actor_sizes=(8,), critic_sizes=(8, 8), target_update_period=0, tau=0.25),
}
every_agent = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())


def batch(seed: int = 0) -> dict[str, Tensor]:
    """Return four made-up transitions."""
    return random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(seed))


def kept(state: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return copies of the networks of a state."""
    names = ("actor", "critic", "target_actor", "target_critic")
    return {name: copy.deepcopy(state[name]) for name in names}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """True if two networks hold bit-equal parameters."""
    return all(torch.equal(value, right[name]) for name, value in left.items())


def test_ddpg_target_is_the_return_and_the_discounted_value() -> None:
    """1 + .5 * 4 = 3; after termination the return alone."""
    target = ddpg.td_target(torch.tensor([1.0, 7.0]), torch.tensor([0.5, 0.0]), torch.tensor([4.0, 4.0]))
    torch.testing.assert_close(target, torch.tensor([3.0, 7.0]))


def test_td3_target_takes_the_smaller_critic() -> None:
    """1 + .5 * min(4, 2) = 2 and 0 + .9 * min(-1, 3) = -.9."""
    q = torch.tensor([[4.0, -1.0], [2.0, 3.0]])
    target = td3.clipped_double_q_target(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.9]), q)
    torch.testing.assert_close(target, torch.tensor([2.0, -0.9]))


@pytest.mark.parametrize(
    "squared, bounded",
    [
        (
            DDPGConfig(actor_sizes=(8,), critic_sizes=(8, 8)),
            DDPGConfig(actor_sizes=(8,), critic_sizes=(8, 8), loss="huber"),
        ),
        (TD3Config(hidden_sizes=(8,)), TD3Config(hidden_sizes=(8,), huber_delta=1.0)),
    ],
)
def test_bounded_error_makes_a_crash_pull_no_harder(squared: Config, bounded: Config) -> None:
    """Returns of -100 and -1,000 move the bounded critic by the same gradient, the squared one by ten times as much."""
    pulls = []
    for config in (squared, bounded):
        gradients = []
        for crash in (-100.0, -1_000.0):
            agent, made_up = build_agent(config, CONTINUOUS, seed=0), batch()
            made_up |= {"n_step_return": torch.full((4,), crash), "bootstrap_discount": torch.zeros(4)}
            agent.update(made_up, torch.ones(4))
            gradients.append(agent.state_dict()["critic_optimizer"]["mean"]["0"].abs().max())
        pulls.append(float(gradients[1] / gradients[0]))
    assert pulls == [pytest.approx(10.0, rel=0.02), pytest.approx(1.0)]


def test_smoothing_noise_is_limited_and_the_action_too() -> None:
    """Noise .7 counts as .5, and .9 + .5 as 1; -.1 and -.2 count as they are."""
    action = td3.smoothed_action(torch.tensor([[0.2, 0.9, -0.5]]), torch.tensor([[0.7, 0.7, -0.2]]), 0.5)
    torch.testing.assert_close(action, torch.tensor([[0.7, 1.0, -0.7]]))


def test_actor_losses_are_minus_the_mean_value() -> None:
    """DDPG's critic says 1 and 3; TD3 asks its first critic only; D4PG's expects -.25 and 1 * .5 - .25 = .25."""
    torch.testing.assert_close(ddpg.actor_loss(torch.tensor([1.0, 3.0])), torch.tensor(-2.0))
    torch.testing.assert_close(td3.actor_loss(torch.tensor([[1.0, 3.0], [99.0, 99.0]])), torch.tensor(-2.0))
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]).log()
    torch.testing.assert_close(d4pg.actor_loss(logits, torch.tensor([-1.0, 0.0, 1.0])), torch.tensor(0.0))


def test_d4pg_critic_loss_weighs_cross_entropies() -> None:
    """Even predictions of certain targets cost ln 2 each: weights 1 and .5 make .75 ln 2; divergences are ln 2."""
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    result = d4pg.critic_loss(torch.zeros(2, 2), target, torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(result.loss, torch.tensor(0.75 * math.log(2)))
    torch.testing.assert_close(result.divergence, torch.full((2,), math.log(2)))


@every_agent
def test_actor_loss_never_reaches_the_critic(config: Config) -> None:
    """With weights of 0 the critic's own gradient is 0: the actor moves, the critic's parameters do not."""
    agent = build_agent(config, CONTINUOUS, seed=0)
    before = kept(agent.state_dict())
    agent.update(batch(), torch.zeros(4))
    after = agent.state_dict()
    assert same(before["critic"], after["critic"])
    assert not same(before["actor"], after["actor"])
    modules = vars(agent)["_state"].networks.values()
    assert len(modules) == 4
    assert all(parameter.grad is None for module in modules for parameter in module.parameters())


@every_agent
def test_targets_start_equal_and_move_by_tau(config: Config) -> None:
    """After one update each target is 3/4 of what it was and 1/4 of its network."""
    agent = build_agent(config, CONTINUOUS, seed=0)
    before = kept(agent.state_dict())
    assert same(before["actor"], before["target_actor"])
    assert same(before["critic"], before["target_critic"])
    agent.update(batch(), torch.ones(4))
    state = agent.state_dict()
    for name in ("actor", "critic"):
        for key, value in state[f"target_{name}"].items():
            torch.testing.assert_close(value, 0.75 * before[name][key] + 0.25 * state[name][key])


def test_td3_delays_actor_and_targets() -> None:
    """With policy_delay 2 updates 1 and 3 move them, update 2 moves the critics alone."""
    agent = build_agent(CASES["td3"], CONTINUOUS, seed=0)
    states = []
    for number in range(3):
        agent.update(batch(number), torch.ones(4))
        states.append(kept(agent.state_dict()))
    for name in ("actor", "target_actor", "target_critic"):
        assert same(states[0][name], states[1][name])
        assert not same(states[1][name], states[2][name])
    assert not same(states[0]["critic"], states[1]["critic"])


def test_d4pg_copies_its_targets_when_it_is_time() -> None:
    """With target_update_period 3 they stay for two updates and equal their networks after the third."""
    agent = build_agent(D4PGConfig(actor_sizes=(8,), critic_sizes=(8, 8), target_update_period=3), CONTINUOUS, seed=0)
    start = kept(agent.state_dict())
    for number in range(3):
        state = kept(agent.state_dict())
        assert same(state["target_critic"], start["target_critic"])
        assert same(state["target_actor"], start["target_actor"])
        agent.update(batch(number), torch.ones(4))
    state = kept(agent.state_dict())
    assert same(state["target_critic"], state["critic"])
    assert same(state["target_actor"], state["actor"])


def test_td3_draws_its_target_noise_from_its_own_generator() -> None:
    """Two agents of one seed agree whatever torch's global generator does, and noise of 0 differs from noise."""
    states: list[dict[str, dict[str, Tensor]]] = []
    for noise in (0.2, 0.2, 0.0):
        torch.manual_seed(len(states))
        agent = build_agent(TD3Config(hidden_sizes=(8,), target_noise=noise), CONTINUOUS, seed=0)
        agent.update(batch(), torch.ones(4))
        states.append(kept(agent.state_dict()))
    assert same(states[0]["critic"], states[1]["critic"])
    assert not same(states[0]["critic"], states[2]["critic"])


@pytest.mark.parametrize("action_layer", [0, 1, 2])
def test_action_enters_at_its_layer(action_layer: int) -> None:
    """Layers before it have the observation's widths only, and the output depends on the action."""
    critic = ActionCritic(3, 2, (8, 6), 1, torch.Generator().manual_seed(0), action_layer=action_layer)
    widths = [layer.weight.shape[1] for layer in (*critic.hidden, critic.head)]
    assert widths == [3 + 2 * (action_layer == 0), 8 + 2 * (action_layer == 1), 6 + 2 * (action_layer == 2)]
    observation = torch.ones(1, 3)
    assert not torch.equal(critic(observation, torch.zeros(1, 2)), critic(observation, torch.ones(1, 2)))


def test_small_last_layer_makes_first_actions_small() -> None:
    """Within a bound of .003 the first actions are near 0; without one they are not; tanh bounds all."""
    rng, observation = torch.Generator().manual_seed(0), torch.randn(50, 3) * 100
    assert DeterministicActor(3, (32,), 2, rng, activation="tanh", last_bound=3e-3)(observation).abs().max() < 0.11
    free = DeterministicActor(3, (32,), 2, rng)(observation)
    assert 0.5 < free.abs().max() <= 1.0


def test_bytes_of_an_image_become_shares_of_one() -> None:
    """uint8 observations are scaled, float ones are not; both are flattened."""
    torch.testing.assert_close(
        flat(torch.tensor([[[0, 255], [51, 0]]], dtype=torch.uint8)), torch.tensor([[0.0, 1, 0.2, 0]])
    )
    torch.testing.assert_close(flat(torch.tensor([[[300.0]]])), torch.tensor([[300.0]]))


@every_agent
def test_policy_explores_by_its_noise_after_random_steps(config: Config) -> None:
    """First uniform actions, whatever the parameters; then the greedy action and noise of the set deviation."""
    spec = EnvSpec((3,), "float32", action_shape=(2,))
    noise = NoiseConfig(std=0.05)
    settings = type(config)(noise=noise, start_steps=100)  # default networks: first actions near 0
    policy = build_policy(settings, spec, seed=0)
    policy.load(build_agent(settings, spec, seed=0).policy_state())
    seen = np.zeros((4_000, 3), np.float32)
    random = policy.act(policy_input(seen), 99).action
    np.testing.assert_allclose(random.var(axis=0), 1 / 3, atol=0.03)
    off = policy.act(policy_input(seen), 100).action - policy.act(policy_input(seen), evaluation=True).action
    np.testing.assert_allclose(off.std(axis=0), 0.05, rtol=0.05)


@pytest.mark.parametrize("ends", ["nowhere", "terminated", "truncated"])
@pytest.mark.parametrize("spec", [CONTINUOUS, CONTINUOUS_BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize(
    "config",
    [
        DDPGConfig(actor_sizes=(8,), critic_sizes=(8, 8), n_step=3, start_steps=0),
        TD3Config(hidden_sizes=(8,), n_step=3, target_noise=0.0, start_steps=0),
        D4PGConfig(actor_sizes=(8,), critic_sizes=(8, 8), n_step=3, value_min=-4.0, value_max=4.0, start_steps=0),
    ],
    ids=["ddpg", "td3", "d4pg"],
)
def test_actors_initial_priority_equals_the_learners(config: Config, spec: EnvSpec, ends: str) -> None:
    """On the same parameters the actor says of a window what the learner's first update reports."""
    agent, policy = build_agent(config, spec, seed=0), build_policy(config, spec, seed=1)
    policy.load(agent.policy_state())
    rng = torch.Generator().manual_seed(5)
    seen = [random_batch(spec, 5, rng)["observation"] for _ in range(4)]
    decisions = [policy.act(policy_input(observation.numpy()), 0) for observation in seen]
    steps = {
        name: np.stack([d.priority_inputs[name] for d in decisions]) for name in ("seen_observation", "taken_action")
    }
    reward = torch.randn((4, 5), generator=rng).numpy()
    end = np.zeros((4, 5), dtype=bool)
    end[1] = True  # the second step, so two rewards are summed and the third row is the final one
    steps |= {"reward": reward, "terminated": end & (ends == "terminated"), "truncated": end & (ends == "truncated")}
    summed = 3 if ends == "nowhere" else 2
    made_up = {
        "observation": seen[0],
        "action": torch.from_numpy(decisions[0].action),
        "n_step_return": torch.from_numpy(sum(0.99**k * reward[k] for k in range(summed))),
        "bootstrap_discount": torch.full((5,), 0.0 if ends == "terminated" else 0.99**summed),
        "bootstrap_observation": seen[summed],
    }
    learned = agent.update(made_up, torch.ones(5)).priority
    np.testing.assert_allclose(policy.initial_priority(steps), learned.numpy(), rtol=1e-4, atol=1e-5)


def test_initial_priority_survives_a_stack_that_is_written_over() -> None:
    """A row reaches the writer a step later, when the next frame is in the same array."""
    policy = build_policy(CASES["td3"], CONTINUOUS, seed=1)
    stack = np.zeros((5, *CONTINUOUS.observation_shape), np.float32)
    seen = policy.act(policy_input(stack), 0).priority_inputs["seen_observation"]
    stack += 1.0
    assert (seen == 0.0).all()
