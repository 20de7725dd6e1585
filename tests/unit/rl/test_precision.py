"""A network that acts in bfloat16 acts as the float32 network does."""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import CASES, IMAGE, policy_input, random_batch, sampled_batch
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.dqn import build_network
from tidemill.rl.agents.interface import Update
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.networks import precision
from tidemill.rl.networks.layers.noisy import reset_noise
from tidemill.rl.networks.precision import MatmulPrecision, in_float32, pays
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.types import EnvSpec

_SPEC = EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=6)


def test_bfloat16_greedy_actions_agree_wherever_float32_is_not_undecided() -> None:
    """Over random images the actions differ only where float32's two best Q lie within bfloat16's error."""
    config = DQNConfig(network="nature", hidden_sizes=(512,), dueling=True)
    state = build_agent(config, _SPEC, seed=3).policy_state()
    observation = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84), dtype=np.uint8)
    observation[:, :, 20:40, 20:60] = 0  # not noise alone: a place that is the same in all
    full = build_policy(config, _SPEC, precision="float32", slot=ActorSlot(num_envs=64))
    half = build_policy(config, _SPEC, precision="bfloat16", slot=ActorSlot(num_envs=64))
    for policy in (full, half):
        policy.load(state)
    exact, near = full.q_values(observation), half.q_values(observation)  # type: ignore[attr-defined]
    assert near.dtype == np.float32
    assert not np.array_equal(exact, near)
    best = np.sort(exact, axis=1)
    error = np.abs(exact - near).max()
    assert error < 0.02 * np.abs(exact).max()
    decided = best[:, -1] - best[:, -2] > 2 * error
    assert decided.mean() > 0.5
    actions = [policy.act(policy_input(observation), evaluation=True).action[decided] for policy in (full, half)]
    assert np.array_equal(actions[0], actions[1])


def test_auto_precision_loads_and_acts() -> None:
    """Whatever format the timing picks, a policy takes float16 parameters and chooses actions."""
    config = DQNConfig(network="nature", hidden_sizes=(64,))
    policy = build_policy(config, _SPEC, precision="auto", slot=ActorSlot(num_envs=2))
    policy.load({name: value.to(torch.float16) for name, value in build_agent(config, _SPEC).policy_state().items()})
    assert policy.act(policy_input(np.zeros((2, 4, 84, 84), dtype=np.uint8)), evaluation=True).action.shape == (2,)


@pytest.mark.parametrize("algorithm", algorithms())
def test_bfloat16_is_followed_or_refused(algorithm: str) -> None:
    """Whatever is asked for by name happens; `auto` is float32 for the other policies, and for vectors."""
    config = config_class(algorithm)()
    actions: dict[str, Any] = {"num_actions": 3}
    if getattr(config, "actions", "") == "continuous":
        actions = {"action_shape": (2,)}
    specs = [
        EnvSpec((36, 40), "uint8", **actions),
        EnvSpec((5,), "float32", **actions),
        EnvSpec((5,), "uint8", **actions),
    ]
    for spec in specs:
        build_policy(config, spec, precision="auto")
    if algorithm in ("dqn", "r2d2"):
        followed: Any = build_policy(config, specs[0], precision="bfloat16")
        assert torch.bfloat16 in {parameter.dtype for parameter in followed._network.parameters()}
        specs, named = specs[1:], "'mlp'"
    else:
        named = f"'{algorithm}' dqn r2d2"
    for spec in specs:
        with pytest.raises(ConfigError, match=naming(f"precision 'bfloat16' {named} auto float32")):
            build_policy(config, spec, precision="bfloat16")


def check_same_way(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare two changes of a parameter: Adam moves each number by about its step size, whatever the gradient is."""
    if expected.any():
        cosine = torch.nn.functional.cosine_similarity(found.float().flatten(), expected.float().flatten(), dim=0)
        assert cosine > 0.7


@pytest.mark.parametrize("network", ["nature", "mlp"])
def test_update_in_bfloat16_follows_the_one_in_float32(network: str) -> None:
    """Parameters, priorities and loss are float32 and near; a vector's network is not rounded unless asked for."""
    spec = _SPEC if network == "nature" else EnvSpec((5,), "float32", num_actions=6)
    config = DQNConfig(network=network, hidden_sizes=(64,), optimizer_epsilon=1e-2)
    rng, updates = torch.Generator().manual_seed(0), {}
    batch = random_batch(spec, 16, rng)
    for dtype in ("float32", "bfloat16"):
        agent = build_agent(dataclasses.replace(config, update_precision=dtype), spec, seed=3)
        updates[dtype] = (agent.update(batch, torch.ones(16)), agent.policy_state())
    (exact, expected), (near, found) = updates["float32"], updates["bfloat16"]
    assert near.priority.dtype == near.metrics["loss"].dtype == torch.float32
    assert not torch.equal(near.priority, exact.priority)
    torch.testing.assert_close(near.priority, exact.priority, rtol=0.05, atol=0.02)
    before = build_agent(config, spec, seed=3).policy_state()
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32
        torch.testing.assert_close(found[name], tensor, rtol=0.05, atol=2e-4)
        check_same_way(found[name] - before[name], tensor - before[name])


IMAGES = ("ppo_image", "ppo_lstm_image", "impala_colours", "pqn_image", "sac_discrete_image", "sac_image")


def updated(name: str, **settings: object) -> tuple[Update, dict[str, torch.Tensor]]:
    """Return the report of an update of a case with other settings, and the policy after it."""
    config, spec = CASES[name]
    agent = build_agent(dataclasses.replace(config, **settings), spec, seed=3)  # type: ignore[type-var]
    batch = sampled_batch(agent, config, spec, 8, torch.Generator().manual_seed(0))
    return agent.update(batch, torch.ones(8)), agent.policy_state()


@pytest.mark.parametrize("name", IMAGES)
def test_update_from_images_in_bfloat16_is_near_the_one_in_float32(name: str) -> None:
    """Losses, norms of gradients and parameters are float32, finite and near, and something was rounded."""
    (exact, expected), (near, found) = (updated(name, update_precision=each) for each in ("float32", "bfloat16"))
    assert {tensor.dtype for tensor in near.metrics.values()} == {torch.float32}
    assert near.metrics != exact.metrics
    torch.testing.assert_close(near.metrics, exact.metrics, rtol=0.1, atol=0.05)
    config, spec = CASES[name]
    before = build_agent(config, spec, seed=3).policy_state()
    for parameter, tensor in expected.items():
        assert found[parameter].dtype == tensor.dtype
        torch.testing.assert_close(found[parameter], tensor, rtol=0.05, atol=5e-3)
        check_same_way(found[parameter] - before[parameter], tensor - before[parameter])


@pytest.mark.parametrize("name", IMAGES)
def test_update_from_images_laid_channels_last_is_the_same(name: str) -> None:
    """To rounding."""
    (plain, expected), (laid, found) = (updated(name, channels_last=on) for on in (False, True))
    torch.testing.assert_close(laid.metrics, plain.metrics, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ppo", "impala_lstm", "pqn", "sac_discrete"])
def test_vectors_are_rounded_only_when_asked(name: str) -> None:
    """`auto` is float32 for them on every machine."""
    exact, auto, near = (updated(name, update_precision=each)[1] for each in ("float32", "auto", "bfloat16"))
    assert all(torch.equal(auto[parameter], tensor) for parameter, tensor in exact.items())
    assert not all(torch.equal(near[parameter], tensor) for parameter, tensor in exact.items())


def test_auto_precision_of_updates_is_by_capability() -> None:
    """The same on every start of the same machine, and never short for vectors."""
    cpu = torch.device("cpu")
    assert MatmulPrecision("auto", cpu, images=False).dtype == torch.float32
    expected = torch.bfloat16 if pays(cpu) else torch.float32
    assert MatmulPrecision("auto", cpu, images=True).dtype == expected


def test_last_layer_is_float32_within_short_products() -> None:
    """A value of 1,001 stays 1,001, which bfloat16 would round to 1,000."""
    layer = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1_001.0)
    with MatmulPrecision("bfloat16", torch.device("cpu"), images=True)():
        assert in_float32(layer, torch.ones(1, 1)).item() == 1_001.0
        assert layer(torch.ones(1, 1)).item() == 1_000.0


def test_time_of_a_pass_on_a_gpu_ends_when_the_gpu_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches take the same time in both formats: the clock waits for what they launched, and for what was before."""
    events: list[str] = []

    def perf_counter() -> float:
        events.append("clock")
        return float(events.count("clock"))

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(f"wait for {device}"))
    monkeypatch.setattr(time, "perf_counter", perf_counter)

    class Observation:
        device = torch.device("cuda:3")

    seconds = precision._forward_s(lambda observation: events.append("launch"), Observation())  # type: ignore[arg-type]
    assert seconds == 1.0
    assert events == ["wait for cuda:3", "clock", "launch", "wait for cuda:3", "clock"]


@pytest.mark.parametrize(
    "settings",
    [
        {"network": "nature_group_norm", "hidden_sizes": (16, 8)},
        {"network": "impala", "network_settings": {"spectral_norm": True}, "distribution": "iqn", "atoms": 4},
        {"network": "impala", "noisy": True},
    ],
    ids=["layers", "iqn", "noisy"],
)
def test_parameters_that_are_cast_together_give_autocasts_numbers(settings: dict[str, Any]) -> None:
    """Outputs and gradients are the same, bit by bit, and the parameters are float32 again afterwards."""
    network = build_network(DQNConfig(**settings), IMAGE, seed=0)
    reset_noise(network, torch.Generator().manual_seed(1))
    plain = copy.deepcopy(network)
    network.matmul_precision = MatmulPrecision("bfloat16", torch.device("cpu"), images=True)
    observation = torch.randint(256, (3, 4, 36, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    found = network(observation)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(observation)
    assert torch.equal(found, expected)
    gradients = torch.autograd.grad(found.square().sum(), list(network.parameters()))
    for gradient, other in zip(
        gradients, torch.autograd.grad(expected.square().sum(), list(plain.parameters())), strict=True
    ):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, other)
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in network.parameters())
