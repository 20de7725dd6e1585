"""SAC without target critics (CrossQ): batch renormalisation by its definition, and whose statistics it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import CONTINUOUS, policy_input, random_batch
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.params.blob import half
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.sac import SACAgent, SACPolicy
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP
from tidemill.rl.networks.layers.batch_renorm import BATCH_NORM, RENORM, BatchRenorm, RenormBounds
from tidemill.rl.settings.soft_actor_critic import SACConfig

CPU = torch.device("cpu")
ALL_BOUNDS = pytest.mark.parametrize("bounds", [None, BATCH_NORM, RENORM, RenormBounds(1.2, 0.1)])


def _layer(rng: torch.Generator) -> BatchRenorm:
    """Return a layer of two networks with three inputs, whose state is anything."""
    layer = BatchRenorm(2, 3)
    with torch.no_grad():
        for tensor in (layer.scale, layer.shift, layer.running_mean):
            tensor.normal_(generator=rng)
        layer.running_std.uniform_(0.3, 3.0, generator=rng)
    return layer


def _defined(layer: BatchRenorm, x: np.ndarray, bounds: RenormBounds | None) -> np.ndarray:
    """Return Ioffe 2017, algorithm 1, number by number."""
    scale, shift, running_mean, running_std = (
        tensor.detach().numpy().astype(np.float64)
        for tensor in (layer.scale, layer.shift, layer.running_mean, layer.running_std)
    )
    result = np.empty_like(x)
    for network, item, column in np.ndindex(x.shape):
        at = (network, 0, column)
        if bounds is None:
            normal = (x[network, item, column] - running_mean[at]) / running_std[at]
        else:
            batch = x[network, :, column]
            mean = sum(batch) / len(batch)
            std = np.sqrt(1e-3 + sum((number - mean) ** 2 for number in batch) / len(batch))
            ratio = min(max(std / running_std[at], 1 / bounds.ratio), bounds.ratio)
            offset = min(max((mean - running_mean[at]) / running_std[at], -bounds.offset), bounds.offset)
            normal = (x[network, item, column] - mean) / std * ratio + offset
        result[network, item, column] = scale[at] * normal + shift[at]
    return result


@ALL_BOUNDS
@pytest.mark.parametrize("seed", [0, 1])
def test_renormalisation_is_the_definition(bounds: RenormBounds | None, seed: int) -> None:
    """By running statistics, by a batch's, and by a batch's corrected within wide and narrow bounds."""
    rng = torch.Generator().manual_seed(seed)
    layer, x = _layer(rng), 2.0 + 3.0 * torch.randn((2, 8, 3), generator=rng)
    expected = _defined(layer, x.numpy().astype(np.float64), bounds)
    np.testing.assert_allclose(layer(x, bounds).output.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@ALL_BOUNDS
def test_written_out_gradients_are_autograds(bounds: RenormBounds | None) -> None:
    """Of the inputs, scale and shift; ratio and offset count as constants."""
    rng = torch.Generator().manual_seed(0)
    layer = _layer(rng)
    x, gradient = torch.randn((2, 8, 3), generator=rng).requires_grad_(), torch.randn((2, 8, 3), generator=rng)
    saved = layer(x, bounds)
    expected = torch.autograd.grad(saved.output, (x, layer.scale, layer.shift), gradient)
    found, affine = layer.backward(saved, gradient)
    torch.testing.assert_close([found, *affine], list(expected), rtol=1e-4, atol=1e-5)


@ALL_BOUNDS
def test_gradients_of_whole_networks_are_autograds(bounds: RenormBounds | None) -> None:
    """Of every parameter in its place, and of the last inputs."""
    rng = torch.Generator().manual_seed(0)
    network = EnsembleMLP(2, 5, (16, 12), 3, rng, batch_renorm=True)
    observation, action = torch.randn((7, 3), generator=rng), torch.randn((7, 2), generator=rng).requires_grad_()
    gradient = torch.randn((2, 7, 3), generator=rng)
    activations = network.activations(observation, action, bounds)
    parameters = list(network.parameters())
    expected = torch.autograd.grad(activations[-1].output, [*parameters, action], gradient)
    with torch.no_grad():
        found = network.parameter_gradients(activations, gradient)
        by_action = network.input_gradient(activations, gradient, last=2).sum(dim=0)
    torch.testing.assert_close([*found, by_action], list(expected), rtol=1e-3, atol=1e-5)


def test_bounds_are_the_papers() -> None:
    """A ratio of 3 and an offset of 5 (Ioffe 2017, section 4); none at all is batch normalisation."""
    assert RENORM == (3.0, 5.0)
    assert BATCH_NORM == (1.0, 0.0)


def test_running_statistics_move_by_a_hundredth() -> None:
    """Towards the batch's, only when asked to; a pass leaves them."""
    layer, x = BatchRenorm(1, 2), torch.tensor([[[0.0, 5.0], [4.0, 5.0]]])
    saved = layer(x, BATCH_NORM)
    assert layer.running_mean.flatten().tolist() == [0.0, 0.0]
    assert saved.mean is not None
    assert saved.std is not None
    layer.track(saved.mean, saved.std)
    torch.testing.assert_close(layer.running_mean.flatten(), torch.tensor([0.02, 0.05]))
    expected = torch.tensor([0.99 + 0.01 * 4.001**0.5, 0.99 + 0.01 * 0.001**0.5])
    torch.testing.assert_close(layer.running_std.flatten(), expected)


def _agent(**settings: Any) -> SACAgent:  # noqa: ANN401 - any of the settings
    return SACAgent(SACConfig(hidden_sizes=(8,), crossq=True, start_steps=0, **settings), CONTINUOUS, CPU, seed=0)


def _train(agent: SACAgent, updates: int) -> SACAgent:
    rng = torch.Generator().manual_seed(0)
    for _ in range(updates):
        agent.update(random_batch(CONTINUOUS, 6, rng), torch.ones(6))
    return agent


def _critic(agent: SACAgent) -> list[Tensor]:
    return [value.clone() for value in agent.state_dict()["critic"].values()]


def test_there_is_no_target_and_statistics_are_stored_and_sent() -> None:
    """The learner keeps no target critics; running statistics travel in checkpoints and to actors, who act by them."""
    agent = _train(_agent(), 30)
    state, sent = agent.state_dict(), agent.policy_state()
    assert "target" not in state
    names = [name for name in state["actor"] if "running" in name]
    assert len(names) == 4
    assert all(torch.equal(sent[f"actor.{name}"], state["actor"][name]) for name in names)
    policy = SACPolicy(SACConfig(hidden_sizes=(8,), crossq=True), CONTINUOUS, PolicyContext(CPU, 1))
    policy.load(sent)
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    together = policy.act(policy_input(seen), evaluation=True).action
    alone = np.concatenate([policy.act(policy_input(row[None]), evaluation=True).action for row in seen])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)  # an action depends on its observation alone


def test_statistics_far_from_zero_reach_actors_as_they_are() -> None:
    """In float16 a mean of 5,000 with a deviation of 0.5 would be off by up to four deviations."""
    agent, batch = _agent(), random_batch(CONTINUOUS, 6, torch.Generator().manual_seed(0))
    batch["observation"] += 500_000.0  # of which a hundredth is the mean
    agent.update(batch, torch.ones(6))
    full = agent.policy_state()
    sent = half({name: value.numpy() for name, value in full.items()})
    assert sent is not None
    for name in (name for name in full if "running" in name):
        np.testing.assert_array_equal(sent[name], full[name].numpy())


def test_statistics_of_an_earlier_version_are_read() -> None:
    """Those in float32 stay what they are, though a state has them in float64."""
    layer = BatchRenorm(1, 2)
    earlier = {name: torch.full_like(value, 0.1, dtype=torch.float32) for name, value in layer.state_dict().items()}
    layer.load_state_dict(earlier)
    assert layer.state_dict()["running_mean"].dtype == torch.float64
    assert layer.running_mean.equal(earlier["running_mean"])
    assert layer(torch.ones(1, 3, 2)).output.dtype == torch.float32


def test_statistics_are_of_both_ends_of_the_transitions() -> None:
    """The critics' first layer has seen the batch's observations and those that follow, in equal parts."""
    agent, batch = _agent(), random_batch(CONTINUOUS, 64, torch.Generator().manual_seed(0))
    batch["observation"] += 10.0
    agent.update(batch, torch.ones(64))
    mean = agent.state_dict()["critic"]["layers.0.renorm.running_mean"]
    both = torch.cat((batch["observation"], batch["bootstrap_observation"])).mean(dim=0)
    torch.testing.assert_close(mean[:, 0, :3].float(), (0.01 * both).expand(2, -1))


def test_running_statistics_correct_batches_after_the_warm_up() -> None:
    """Two agents whose warm-up ends after three and after four updates part at the fourth."""
    first, second = _agent(crossq_warmup_updates=3), _agent(crossq_warmup_updates=4)
    torch.testing.assert_close(_critic(_train(first, 3)), _critic(_train(second, 3)), rtol=0, atol=0)
    batch = random_batch(CONTINUOUS, 6, torch.Generator().manual_seed(1))
    for agent in (first, second):
        agent.update(batch, torch.ones(6))
    parted = [not torch.equal(a, b) for a, b in zip(_critic(first), _critic(second), strict=True)]
    assert any(parted)


@pytest.mark.parametrize(
    "settings, message",
    [({"actor_ema_decay": 0.9}, "actor_ema_decay 0.9"), ({"crossq_warmup_updates": -1}, "crossq_warmup_updates")],
)
def test_setting_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    """By its name and value."""
    with pytest.raises(ConfigError, match=naming(message)):
        _agent(**settings)
