"""SAC: it solves a continuous bandit, keeps gradients apart and knows its own density."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from tests.support.batches import CONTINUOUS, policy_input, random_batch, sampled_batch
from tidemill.params.blob import half
from tidemill.rl import losses
from tidemill.rl.agents import sac_heads
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.sac import SACAgent, SACPolicy, build_actor, build_critic
from tidemill.rl.mean_priority import NewItemPriority
from tidemill.rl.networks.ensemble_mlp import EnsembleLayer, EnsembleMLP
from tidemill.rl.networks.squashed_gaussian import LOG_STD_MAX, head_gradient, sample
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

CPU = torch.device("cpu")
BANDIT = EnvSpec((1,), "float32", action_shape=(1,))


def layers_of(network: EnsembleMLP) -> list[EnsembleLayer]:
    """Return the layers of a network, from its input on."""
    return [module for module in network.modules() if isinstance(module, EnsembleLayer)]


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
    policy = SACPolicy(config, BANDIT, PolicyContext(CPU, 0))
    policy.load(agent.policy_state())
    return agent, policy


def test_large_priority_of_new_items_is_that_of_the_learner() -> None:
    """Also where actors get float16, which ends at 65,504: a smaller one would keep new items from being drawn."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,)), CONTINUOUS, CPU, seed=0)
    batch = sampled_batch(agent, SACConfig(), CONTINUOUS, 8, torch.Generator().manual_seed(0))
    batch["n_step_return"] = batch["n_step_return"] + 1e8
    agent.update(batch, torch.ones(8))
    state = half({name: value.numpy() for name, value in agent.policy_state().items()})
    assert state is not None
    new_item = NewItemPriority()
    new_item.load({name: torch.from_numpy(value) for name, value in state.items()})
    mean = float(agent.state_dict()["mean_priority"])
    assert mean > 1e5
    np.testing.assert_allclose(new_item.of(2), mean, rtol=1e-6)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_actor_finds_the_best_action_of_a_bandit(layer_norm: bool) -> None:
    """Nearly without entropy the mean goes to .5, where the reward is largest."""
    config = SACConfig(
        hidden_sizes=(32,),
        learning_rate=3e-3,
        temperature="fixed",
        initial_temperature=1e-3,
        critic_layer_norm=layer_norm,
        start_steps=0,
    )
    _, policy = learn_bandit(config)
    assert policy.act(policy_input(np.zeros((1, 1), dtype=np.float32)), evaluation=True).action[0, 0] == pytest.approx(
        0.5, abs=0.05
    )


def test_learned_temperature_brings_the_entropy_to_its_target() -> None:
    """The policy's entropy, estimated from 4000 of its samples, is the -1 nat asked for."""
    config = SACConfig(
        hidden_sizes=(32,), learning_rate=3e-3, initial_temperature=0.1, target_entropy=-1.0, start_steps=0
    )
    agent, policy = learn_bandit(config)
    action = policy.act(policy_input(np.zeros((4_000, 1), dtype=np.float32)), 0).action[:, 0]
    density, edges = np.histogram(action, bins=60, density=True)
    width = np.diff(edges)
    seen = density > 0
    entropy = -(density * np.log(density, where=seen, out=np.zeros_like(density)) * width)[seen].sum()
    assert entropy == pytest.approx(-1.0, abs=0.25)
    assert float(agent.state_dict()["log_temperature"].exp()) != pytest.approx(0.1, abs=0.03)


def test_log_density_integrates_to_one() -> None:
    """exp(log_prob) summed over a fine grid of actions is 1, so the correction for the squash is right."""
    noise = torch.linspace(-8.0, 8.0, 20_001)[:, None]
    drawn = sample(torch.tensor([[0.3, math.log(0.7)]]).expand(20_001, 2), noise)
    area = torch.trapezoid(drawn.log_prob.exp().double(), drawn.action[:, 0].double())
    assert float(area) == pytest.approx(1.0, abs=1e-3)


def test_log_density_stays_finite_where_tanh_is_flat() -> None:
    """At a mean of 50 tanh is 1 in float32, and log(1 - tanh^2) would be minus infinity."""
    drawn = sample(torch.tensor([[50.0, 0.0]]), torch.zeros(1, 1))
    assert float(drawn.action) == 1.0
    # -log(sqrt(2 pi)) - 2 (log 2 - 50)
    assert float(drawn.log_prob) == pytest.approx(-0.5 * math.log(2 * math.pi) + 100.0 - 2 * math.log(2.0))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_critic_gradients_are_autograds(layer_norm: bool) -> None:
    """Written-out gradients of the critic's loss equal those autograd finds for `twin_td_loss`."""
    critic = EnsembleMLP(2, 5, (16, 12), 1, torch.Generator().manual_seed(0), layer_norm)
    inputs, target, weight = torch.randn(7, 5), torch.randn(7), torch.rand(7)
    result = losses.twin_td_loss(critic(inputs).squeeze(-1), target, weight)
    expected = torch.autograd.grad(result.loss, list(critic.parameters()))
    with torch.no_grad():
        activations = critic.activations(inputs)
        head = sac_heads.ScalarHead(huber_delta=0.0)
        gradient, td_error = head.gradient(activations[-1].output, target.unsqueeze(-1), weight)
        found = critic.parameter_gradients(activations, gradient)
    torch.testing.assert_close(td_error, result.td_error)
    torch.testing.assert_close(found, list(expected))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_actor_gradients_are_autograds(layer_norm: bool) -> None:
    """Through sample, critic and clamp, written-out gradients equal autograd's for the loss of the paper."""
    rng = torch.Generator().manual_seed(0)
    actor, critic = EnsembleMLP(1, 3, (16, 12), 4, rng), EnsembleMLP(2, 5, (16, 12), 1, rng, layer_norm)
    observation, noise, temperature = torch.randn(7, 3), torch.randn(7, 2), torch.tensor(0.3)
    with torch.no_grad():  # so that the clamp holds the first log_std of half of the items
        layers_of(actor)[-1].bias[..., 2] += LOG_STD_MAX + 0.01 - actor(observation)[0, :, 2].median()
    drawn = sample(actor(observation)[0], noise)
    held = drawn.free_log_std[:, 0] > LOG_STD_MAX
    assert 0 < int(held.sum()) < 7
    q = critic(torch.cat((observation, drawn.action), dim=-1)).squeeze(-1)
    loss = (temperature * drawn.log_prob - q.amin(dim=0)).mean()  # Haarnoja et al. 2018, eq. 7
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    with torch.no_grad():
        activations = actor.activations(observation)
        drawn = sample(activations[-1].output[0], noise)
        critic_activations = critic.activations(torch.cat((observation, drawn.action), dim=-1))
        q_gradient = sac_heads.ScalarHead(huber_delta=0.0).actor_gradient(critic_activations[-1].output)
        action_gradient = critic.input_gradient(critic_activations, q_gradient, last=2).sum(dim=0)
        found = actor.parameter_gradients(
            activations, head_gradient(drawn, action_gradient, temperature / 7).unsqueeze(0)
        )
    torch.testing.assert_close(found, list(expected))


def test_actor_step_leaves_the_critic_alone() -> None:
    """With a critic that cannot move, an update moves the actor, and no gradient is left anywhere."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,)), CONTINUOUS, CPU, seed=0)
    batch = random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0))
    before = copy.deepcopy(agent.state_dict())
    agent.update(batch, torch.zeros(4))  # weights of 0 take the critic's own gradient away
    after = agent.state_dict()
    assert all(torch.equal(after["critic"][name], value) for name, value in before["critic"].items())
    assert not all(torch.equal(after["actor"][name], value) for name, value in before["actor"].items())
    parameters = [*agent._actor.parameters(), *agent._critic.parameters(), agent._log_temperature]
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("target, step", [(50.0, 3e-4), (-50.0, -3e-4)])
def test_temperature_rises_while_the_entropy_is_below_its_target(target: float, step: float) -> None:
    """Its gradient is entropy - target, that of -log(temperature) * mean(log pi + target) (Haarnoja et al. 2018b)."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,), target_entropy=target), CONTINUOUS, CPU, seed=0)
    update = agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    state = agent.state_dict()
    gradient = float(state["temperature_optimizer"]["mean"]["0"]) / 0.1  # after one step of Adam
    assert gradient == pytest.approx(float(update.metrics["entropy"]) - target, rel=1e-5)
    assert float(state["log_temperature"]) == pytest.approx(step, rel=1e-3)


def test_batched_critics_are_two_networks() -> None:
    """Each copy computes what plain layers with its parameters compute."""
    critic = EnsembleMLP(2, 5, (16, 12), 1, torch.Generator().manual_seed(0))
    inputs = torch.randn(4, 5)
    values = critic(inputs)
    for copy_index in range(2):
        x = inputs
        for number, layer in enumerate(layers_of(critic)):
            x = x @ layer.weight[copy_index] + layer.bias[copy_index]
            x = torch.relu(x) if number < 2 else x
        torch.testing.assert_close(values[copy_index], x)
    assert not torch.allclose(values[0], values[1])


def test_bfloat16_rounds_the_products_between_hidden_layers_alone() -> None:
    """A layer between hidden ones is the float32 product of rounded factors, rounded once; the others are untouched."""
    rng = torch.Generator().manual_seed(0)
    network = EnsembleMLP(2, 5, (16, 12), 1, rng)
    first, between, last = layers_of(network)
    network.set_update_format(SACConfig(update_precision="bfloat16"), CONTINUOUS, CPU)
    assert [layer.products for layer in (first, between, last)] == [torch.float32, torch.bfloat16, torch.float32]
    x, gradient = torch.randn((2, 8, 16), generator=rng), torch.randn((2, 8, 12), generator=rng)

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.bfloat16).double()

    def check(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | float = 0.0) -> None:
        assert found.dtype == torch.float32
        expected = rounded(left) @ rounded(right)
        torch.testing.assert_close((found - bias).double(), expected, rtol=2**-8, atol=1e-6)

    trace = between(x)
    check(between._linear(x), x, between.weight, between.bias)
    check(between.weight_gradient(trace, gradient), x.mT, gradient)
    check(between.input_gradient(gradient), gradient, between.weight.mT)
    assert torch.equal(first._linear(x[..., :5]), torch.baddbmm(first.bias, x[..., :5], first.weight))


def test_update_in_bfloat16_follows_the_one_in_float32() -> None:
    """One update from the same start and noise: temporal-difference errors and both gradients are near."""
    batch, updates = random_batch(CONTINUOUS, 16, torch.Generator().manual_seed(0)), {}
    for precision in ("float32", "bfloat16"):
        agent = SACAgent(SACConfig(hidden_sizes=(64, 48), update_precision=precision), CONTINUOUS, CPU, 3)
        updates[precision] = (agent.update(batch, torch.ones(16)).priority, agent.state_dict())
    (exact, expected), (near, found) = updates["float32"], updates["bfloat16"]
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0.02, atol=0.01)
    for optimizer in ("actor_optimizer", "critic_optimizer"):  # Adam's mean after one step is a share of the gradient
        mean, rounded = (
            torch.cat([each.flatten() for each in state[optimizer]["mean"].values()]) for state in (expected, found)
        )
        assert rounded.dtype == torch.float32
        assert (rounded - mean).norm() < 0.02 * mean.norm()


def test_target_critic_moves_by_tau() -> None:
    """After one update the target is 3/4 of what it was and 1/4 of the new critic."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,), tau=0.25), CONTINUOUS, CPU, seed=0)
    before = {name: value.clone() for name, value in agent.state_dict()["target"].items()}
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    state = agent.state_dict()
    for name, value in state["target"].items():
        torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * state["critic"][name])


def test_delayed_actor_moves_every_other_update() -> None:
    """With policy_delay 2 the first update moves it, the second does not; the critic always moves."""
    agent = SACAgent(SACConfig(hidden_sizes=(8,), policy_delay=2), CONTINUOUS, CPU, seed=0)
    states = []
    for number in range(3):
        agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(number)), torch.ones(4))
        state = agent.state_dict()
        states.append((state["actor"]["layers.1.bias"].clone(), state["critic"]["layers.1.bias"].clone()))
    assert torch.equal(states[0][0], states[1][0])
    assert not torch.equal(states[1][0], states[2][0])
    assert not torch.equal(states[0][1], states[1][1])


def test_averaged_policy_is_evaluated_and_the_actor_itself_explores() -> None:
    """The published average lags behind the actor, and greedy actions are the average's."""
    config = SACConfig(hidden_sizes=(8,), actor_ema_decay=0.5, start_steps=0, learning_rate=0.05)
    agent = SACAgent(config, CONTINUOUS, CPU, seed=0)
    start = agent.policy_state()
    agent.update(random_batch(CONTINUOUS, 4, torch.Generator().manual_seed(0)), torch.ones(4))
    state = agent.policy_state()
    for name, value in state.items():
        if name.startswith("average."):
            own = name.removeprefix("average.")
            torch.testing.assert_close(value, 0.5 * start[f"actor.{own}"] + 0.5 * state[f"actor.{own}"])
    plain = SACPolicy(SACConfig(hidden_sizes=(8,)), CONTINUOUS, PolicyContext(CPU, 0))
    plain.load({name.replace("average.", "actor."): value for name, value in state.items() if "average." in name})
    averaged = SACPolicy(config, CONTINUOUS, PolicyContext(CPU, 0))
    averaged.load(state)
    seen = policy_input(np.ones((3, 3), dtype=np.float32))
    np.testing.assert_array_equal(averaged.act(seen, evaluation=True).action, plain.act(seen, evaluation=True).action)


def test_averaged_policy_has_the_buffers_of_the_actor() -> None:
    """Such as its spectral norms, which no pass of the average in an update would move."""
    env_spec = EnvSpec((9, 12), "uint8", action_shape=(2,))
    config = SACConfig(
        network="impala",
        network_settings={"spectral_norm": True},
        hidden_sizes=(8,),
        actor_ema_decay=0.9,
        learning_rate=0.05,
    )
    agent = build_agent(config, env_spec, seed=0)
    start = agent.policy_state()
    for number in range(3):
        agent.update(sampled_batch(agent, config, env_spec, 8, torch.Generator().manual_seed(number)), torch.ones(8))
    state = agent.policy_state()
    buffers = [name for name, _ in build_actor(config, env_spec, torch.Generator()).named_buffers()]
    assert [name for name in buffers if not torch.equal(state[f"average.{name}"], state[f"actor.{name}"])] == []
    assert any(not torch.equal(state[f"average.{name}"], start[f"average.{name}"]) for name in buffers)


class Centred(torch.nn.Module):
    """A torso that puts another running mean in place of the one before."""

    mean: torch.Tensor

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.outputs = env_spec.observation_shape[0]
        self.register_buffer("mean", torch.zeros(self.outputs))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the observation less the mean."""
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * observation.detach().mean(0)
        return observation - self.mean


def test_averaged_policy_has_buffers_that_were_replaced() -> None:
    """The average follows the name, not the first tensor of it."""
    config = SACConfig(network=f"{__name__}:Centred", hidden_sizes=(8,), actor_ema_decay=0.9)
    agent = build_agent(config, CONTINUOUS, seed=0)
    agent.update(sampled_batch(agent, config, CONTINUOUS, 8, torch.Generator().manual_seed(0)), torch.ones(8))
    state = agent.policy_state()
    average, own = (state[f"{network}.torso.mean"] for network in ("average", "actor"))
    assert own.any()
    assert torch.equal(average, own)


@pytest.mark.parametrize("network", ["auto", "mlp"])
def test_networks_of_vectors_have_no_torso(network: str) -> None:
    """One that only lays numbers side by side would cost autograd's bookkeeping in every pass."""
    for build in (build_actor, build_critic):
        built = build(SACConfig(network=network, hidden_sizes=(8,)), CONTINUOUS, torch.Generator().manual_seed(0))
        assert type(built) is EnsembleMLP


def test_first_random_steps_are_uniform() -> None:
    """Until the cluster has stepped `start_steps` times the parameters take no part."""
    policy = SACPolicy(SACConfig(hidden_sizes=(8,), start_steps=100), CONTINUOUS, PolicyContext(CPU, 0))
    action = policy.act(policy_input(np.full((4_000, 3), 50.0, dtype=np.float32)), 99).action
    np.testing.assert_allclose(action.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(action.var(axis=0), 1 / 3, atol=0.03)


def test_share_of_the_environments_acts_greedily() -> None:
    """With a share of .5 the first two of four environments act by the mean, the others by samples."""
    config = SACConfig(hidden_sizes=(8,), greedy_fraction=0.5, start_steps=10)
    policy = SACPolicy(config, CONTINUOUS, PolicyContext(CPU, 0))
    observation = np.ones((4, 3), dtype=np.float32)
    action, greedy = (
        policy.act(policy_input(observation), 10).action,
        policy.act(policy_input(observation), evaluation=True).action,
    )
    np.testing.assert_array_equal(action[:2], greedy[:2])
    assert (action[2:] != greedy[2:]).all()
    assert (policy.act(policy_input(observation), 9).action != greedy).all()  # at first all are random


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_exploration_noise_has_the_correlation_asked_for(correlation: float) -> None:
    """Neighbouring steps of 2000 environments correlate as set, and each step's noise keeps its variance."""
    config = SACConfig(hidden_sizes=(8,), noise_correlation=correlation, start_steps=0)
    policy = SACPolicy(config, CONTINUOUS, PolicyContext(CPU, 0))
    observation = np.zeros((2_000, 3), dtype=np.float32)
    raw = [np.arctanh(policy.act(policy_input(observation), 0).action[:, 0]) for _ in range(20)]
    assert np.corrcoef(raw[-2], raw[-1])[0, 1] == pytest.approx(correlation, abs=0.06)
    assert raw[-1].std() == pytest.approx(raw[0].std(), rel=0.08)


def test_correlated_noise_starts_anew_with_each_episode() -> None:
    """Where an observation is the first of its episode, the noise owes nothing to the step before."""
    config = SACConfig(hidden_sizes=(8,), noise_correlation=0.9, start_steps=0)
    policy = SACPolicy(config, CONTINUOUS, PolicyContext(CPU, 0))
    observation, is_first = np.zeros((4_000, 3), dtype=np.float32), np.arange(4_000) < 2_000
    inputs = (policy_input(observation), policy_input(observation, is_first))
    before, after = (np.arctanh(policy.act(seen, 0).action[:, 0]) for seen in inputs)
    assert np.corrcoef(before[:2_000], after[:2_000])[0, 1] == pytest.approx(0.0, abs=0.06)
    assert np.corrcoef(before[2_000:], after[2_000:])[0, 1] == pytest.approx(0.9, abs=0.06)


def test_new_items_are_worth_what_updates_lately_found() -> None:
    """The learner sends the scale of its priorities along, whatever the rewards' is, and continues with it."""
    config = SACConfig(hidden_sizes=(16,))
    agent, policy = build_agent(config, CONTINUOUS, seed=0), build_policy(config, CONTINUOUS, seed=1)
    steps = {"reward": np.zeros((2, 5), np.float32)}
    policy.load(agent.policy_state())
    assert policy.initial_priority(steps).tolist() == [1.0] * 5
    rng = torch.Generator().manual_seed(2)
    for _ in range(600):
        batch = sampled_batch(agent, config, CONTINUOUS, 8, rng)
        batch["n_step_return"] = 1e3 * torch.randn(8, generator=rng)
        update = agent.update(batch, torch.ones(8))
    resumed = build_agent(config, CONTINUOUS, seed=3)
    resumed.load_state_dict(agent.state_dict())
    policy.load(resumed.policy_state())
    found = policy.initial_priority(steps)
    assert found.shape == (5,)
    assert found.dtype == np.float32
    assert 400 < found[0] < 1_600  # the mean size of a normal number is 0.8
    assert update.priority.mean() > 200
    without = {name: value for name, value in agent.policy_state().items() if name != "initial_priority"}
    policy.load(without)  # of an older learner
    assert policy.initial_priority(steps).tolist() == found.tolist()
