"""Networks: shapes, number formats, noise and initial weights."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tests.support.batches import COLOURS, IMAGE, random_batch
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.dqn import build_network
from tidemill.rl.networks.layers.image import (
    Convolution,
    as_channels,
    blank_images,
    convolution,
    pixel_scale,
    to_channels_last,
)
from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.layers.noisy import NoisyLinear, disable_noise, reset_noise, reset_noise_rows
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.networks.torsos import check_axes, check_observations, check_torso, chosen_torso, torso_names
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec, ObservationPart

GRAY = EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=6)


def generator(seed: int = 0) -> torch.Generator:
    """Return a seeded generator."""
    return torch.Generator().manual_seed(seed)


def images(env_spec: EnvSpec, count: int = 2) -> torch.Tensor:
    """Return made-up observations of bytes."""
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    return torch.randint(256, (count, *stack, *env_spec.observation_shape), dtype=torch.uint8, generator=generator(3))


@pytest.mark.parametrize(
    "name,parameters,outputs",
    [
        # convolutions 4*32*64+32, 32*64*16+64, 64*64*9+64; 84 -> 20 -> 9 -> 7 pixels a side
        ("nature", 8_224 + 32_832 + 36_928, 64 * 7 * 7),
        # no biases, but a scale and a shift for each of 32 + 64 + 64 channels
        ("nature_group_norm", 8_192 + 32_768 + 36_864 + 320, 64 * 7 * 7),
        # convolutions 4*32*25+32, 32*64*25+64; 84 -> 16 -> 3 pixels a side
        ("data_efficient", 3_232 + 51_264, 64 * 3 * 3),
        # by section: first convolution, then four of a section's width; 84 -> 42 -> 21 -> 11 pixels a side
        ("impala", (592 + 4 * 2_320) + (4_640 + 4 * 9_248) + (9_248 + 4 * 9_248), 32 * 11 * 11),
    ],
)
def test_image_torso_has_the_size_its_paper_gives(name: str, parameters: int, outputs: int) -> None:
    """Counted by hand, for four gray frames of 84x84 pixels."""
    torso = build_torso(name, GRAY, generator())
    assert sum(parameter.numel() for parameter in torso.parameters()) == parameters
    assert torso(images(GRAY)).shape == (2, outputs)
    assert torso.outputs == outputs


def test_flat_torso_takes_bytes_as_shares_of_255() -> None:
    """As the continuous agents do; floats stay what they are."""
    torso = build_torso("mlp", EnvSpec((3,), "uint8", num_actions=2), generator())
    assert torso(torch.tensor([[0, 51, 255]], dtype=torch.uint8)).tolist() == [[0.0, pytest.approx(0.2), 1.0]]
    assert torso(torch.tensor([[0.0, 51.0, 255.0]])).tolist() == [[0.0, 51.0, 255.0]]


@pytest.mark.parametrize("name", torso_names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torso_computes_in_the_number_format_of_its_parameters(name: str, dtype: torch.dtype) -> None:
    """Features of both formats agree to bfloat16's digits; the observation is left as it was."""
    torso = build_torso(name, GRAY, generator())
    seen = images(GRAY)
    before, exact = seen.clone(), torso(seen)
    features = torso.to(dtype)(seen)
    assert torch.equal(seen, before)
    torch.testing.assert_close(features.float(), exact, rtol=0.05, atol=0.02)
    if name != "mlp":
        assert features.dtype == dtype


def test_float_observation_is_not_overwritten() -> None:
    """A torso that takes observations as they are works on none of them in place."""
    spec = EnvSpec((8, 8), "float32", num_actions=2)
    seen = torch.ones((1, 8, 8))
    torso = build_torso("impala", spec, generator())
    torso(seen)
    assert torch.equal(seen, torch.ones((1, 8, 8)))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_bytes_count_as_0_to_1(dtype: str) -> None:
    """The first convolution sees a byte divided by 255, and a float as it is."""
    spec = EnvSpec((8, 8), dtype, num_actions=2)
    scale = pixel_scale(spec)
    layer = convolution(1, 2, 3, generator(), scale=scale)
    seen = as_channels(torch.arange(64).reshape(1, 8, 8), spec, torch.float32)
    expected = torch.nn.functional.conv2d(seen / 255.0 if dtype == "uint8" else seen, layer.weight, layer.bias)
    torch.testing.assert_close(layer(seen), expected)


def test_packed_layer_passes_as_the_plain_one_and_follows_what_is_loaded() -> None:
    """Whatever order the weight is kept in, the products are the same, for any number of rows."""
    plain, packed = (linear(40, 24, generator(seed)).to(torch.bfloat16).requires_grad_(False) for seed in (1, 2))
    packed.pack(rows=16)
    packed.load_state_dict(plain.state_dict())
    for rows in (1, 16, 20):
        x = torch.randn(rows, 40, generator=generator()).to(torch.bfloat16)
        torch.testing.assert_close(packed(x), plain(x), rtol=0.02, atol=0.02)


def test_colours_and_frames_become_channels_frame_by_frame() -> None:
    """[B, stack, H, W, C] -> [B, stack * C, H, W]: the first three channels are the oldest frame's colours."""
    spec = EnvSpec((8, 9, 3), "uint8", frame_stack=2, num_actions=2)
    seen = images(spec)
    channels = as_channels(seen, spec, torch.float32)
    assert channels.shape == (2, 6, 8, 9)
    torch.testing.assert_close(channels[1, 4], seen[1, 1, :, :, 1].float())
    single = EnvSpec((8, 9, 3), "uint8", num_actions=2)
    torch.testing.assert_close(as_channels(seen[:, 0], single, torch.float32)[0, 2], seen[0, 0, :, :, 2].float())


@pytest.mark.parametrize(
    "shape",
    [
        (3, 84, 84),
        (4, 84, 84),
        (1, 210, 160),
        (4, 10, 10),
        (12, 84, 84),
        (16, 64, 64),
        (3, 32, 64),
        (4, 84, 84, 3),
        (2, 3, 64, 64),
    ],
)
@pytest.mark.parametrize("name", ["auto", "impala"])
def test_image_with_its_channels_first_is_refused(name: str, shape: tuple[int, ...]) -> None:
    """Also one that a frame-stack wrapper has put behind another axis, and one that is a part."""
    part = ObservationPart("camera", "uint8", shape)
    in_parts = EnvSpec((math.prod(shape),), "uint8", num_actions=2, observation_parts=(part,))
    for spec in (EnvSpec(shape, "uint8", num_actions=2), in_parts):
        with pytest.raises(
            ConfigError, match=naming(f"agent.network '{name}' {shape} env.observation_stack last axis mlp")
        ):
            check_axes(name, spec)
        for own in ("mlp", "my_torsos:Torso"):
            check_axes(own, spec)
            check_observations(own, spec)


@pytest.mark.parametrize(
    "shape, torso",
    [
        ((84, 84), "nature"),
        ((84, 84, 12), "nature"),
        ((10, 10, 4), "impala"),  # MinAtar
        ((10, 10, 20), "impala"),
        ((8, 8, 111), "impala"),
        ((6, 10, 20), "mlp"),
        ((5, 9, 26), "mlp"),
        ((7, 7, 3), "mlp"),  # minigrid
        ((4, 4, 16), "mlp"),
        ((4, 4, 4, 2), "mlp"),
    ],
)
def test_image_with_its_channels_last_is_taken(shape: tuple[int, ...], torso: str) -> None:
    """Grids with many codes, too."""
    spec = EnvSpec(shape, "uint8", num_actions=2)
    check_axes("auto", spec)
    check_observations("auto", spec)
    assert chosen_torso("auto", spec) == torso


def test_unknown_torso_is_refused_with_the_nearest_name() -> None:
    """The message names what there is."""
    with pytest.raises(
        ConfigError,
        match=naming("network 'impla' auto data_efficient impala 'impala'"),
    ):
        check_torso("impla")


def test_torso_of_ones_own_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with `build` anywhere on the path is a network like any other."""
    (tmp_path / "own_torsos").mkdir()
    (tmp_path / "own_torsos" / "__init__.py").touch()
    (tmp_path / "own_torsos" / "halves.py").write_text(
        "from tidemill.rl.networks.torsos.mlp import Flat\n\n\n"
        "class Halves(Flat):\n"
        "    def forward(self, observation):\n        return super().forward(observation) / 2\n\n\n"
        "def build(env_spec, rng):\n    return Halves(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check_torso("own_torsos.halves")
    torso = build_torso("own_torsos.halves", EnvSpec((3,), "float32", num_actions=2), generator())
    torch.testing.assert_close(torso(torch.ones((1, 3))), torch.full((1, 3), 0.5))


def test_dueling_head_is_the_state_and_the_advantage_over_the_mean() -> None:
    """The streams by hand: the mean over actions is the state's value, differences are those of the action stream."""
    head = QHead(5, (8, 6), 4, 3, generator(), dueling=True, noise_std=0.0)
    features = torch.randn((2, 5), generator=generator(1))
    q = head(features)
    shared = torch.relu(head.shared[0](features))
    assert head.state is not None
    torch.testing.assert_close(q.mean(dim=1), head.state(shared))
    action = head.action(shared).view(2, 4, 3)
    torch.testing.assert_close(q[:, 1] - q[:, 0], action[:, 1] - action[:, 0])


def test_dueling_head_has_a_hidden_layer_for_each_stream() -> None:
    """Wang et al. (2016), figure 1: 3136 -> 512 -> 1 and 3136 -> 512 -> A."""
    head = QHead(3136, (512,), 6, 1, generator(), dueling=True, noise_std=0.0)
    assert sum(p.numel() for p in head.parameters()) == 2 * (3136 * 512 + 512) + (512 + 1) + (512 * 6 + 6)


def test_noisy_layer_is_the_papers_formula() -> None:
    """The layer is (mu + sigma * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out), in float64."""
    layer = NoisyLinear(3, 2, generator()).double()
    reset_noise(layer, generator(7))
    raw = torch.randn(5, generator=generator(7)).double()
    scaled = raw.sign() * raw.abs().sqrt()
    weight = layer.weight + layer.weight_sigma * torch.outer(scaled[3:], scaled[:3])
    bias = layer.bias + layer.bias_sigma * scaled[3:]
    x = torch.randn((4, 3), generator=generator(8)).double()
    torch.testing.assert_close(layer(x), x @ weight.T + bias, rtol=1e-5, atol=1e-6)


def test_noisy_layer_with_rows_is_the_papers_formula_for_each_item() -> None:
    """Item i comes out as if the noise of row i had been drawn for it alone."""
    layer = NoisyLinear(3, 2, generator()).double()
    x = torch.randn((4, 3), generator=generator(8)).double()
    reset_noise(layer, generator(7), rows=4)
    found = layer(x)
    raw = torch.randn((4, 5), generator=generator(7)).double()
    for item, scaled in enumerate(raw.sign() * raw.abs().sqrt()):
        weight = layer.weight + layer.weight_sigma * torch.outer(scaled[3:], scaled[:3])
        bias = layer.bias + layer.bias_sigma * scaled[3:]
        torch.testing.assert_close(found[item], weight @ x[item] + bias, rtol=1e-5, atol=1e-6)


def test_noisy_layer_starts_with_the_papers_sigma_and_is_silent_until_noise_is_drawn() -> None:
    """Sigma is .5 / sqrt(inputs); without noise it is the linear layer."""
    layer = NoisyLinear(16, 2, generator())
    torch.testing.assert_close(layer.weight_sigma, torch.full((2, 16), 0.125))
    x = torch.randn((3, 16), generator=generator(1))
    plain = x @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer(x), plain)
    reset_noise(layer, generator())
    assert not torch.allclose(layer(x), plain)
    disable_noise(layer)
    torch.testing.assert_close(layer(x), plain)


def test_noise_of_the_head_starts_as_the_settings_say() -> None:
    """Every noisy layer of a network with `noisy_std` .02 starts with .02 / sqrt(inputs)."""
    config = DQNConfig(network="mlp", hidden_sizes=(8, 4), noisy=True, noisy_std=0.02)
    network = build_network(config, EnvSpec((3,), "float32", num_actions=2), 0)
    layers = [each for each in network.modules() if isinstance(each, NoisyLinear)]
    assert len(layers) == 5  # one shared, two of each stream
    for layer in layers:
        inputs = layer.weight_sigma.shape[1]
        torch.testing.assert_close(layer.weight_sigma, torch.full_like(layer.weight, 0.02 / math.sqrt(inputs)))


def test_noise_by_rows_is_each_items_own() -> None:
    """With rows, equal items come out differently; without, alike."""
    layer = NoisyLinear(4, 2, generator())
    reset_noise(layer, generator(), rows=5)
    assert len(np.unique(layer(torch.ones((5, 4))).detach().numpy()[:, 0])) == 5
    reset_noise(layer, generator())
    assert len(np.unique(layer(torch.ones((5, 4))).detach().numpy()[:, 0])) == 1


def test_mean_and_spread_of_the_noise() -> None:
    """f(e) has mean 0 and variance E|e| = sqrt(2 / pi)."""
    layer = NoisyLinear(1, 20_000, generator())
    reset_noise(layer, generator())
    noise = (layer(torch.zeros(1)) - layer.bias) / layer.bias_sigma
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert noise.var().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)


@pytest.mark.parametrize("network,spec", [("nature_group_norm", IMAGE), ("impala", COLOURS)])
def test_images_laid_channels_last_make_the_same_update(network: str, spec: EnvSpec) -> None:
    """Only memory is another: priorities and parameters agree."""
    config = DQNConfig(network=network, hidden_sizes=(16,), update_precision="float32", optimizer_epsilon=1e-2)
    batch = random_batch(spec, 8, generator())
    plain, laid = (build_agent(dataclasses.replace(config, channels_last=on), spec, seed=1) for on in (False, True))
    for _ in range(3):
        expected, found = (agent.update(batch, torch.ones(8)).priority for agent in (plain, laid))
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(laid.policy_state(), plain.policy_state())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("asked", ["auto", True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_images_lie_channels_last_where_it_is_faster_unless_asked_otherwise(
    precision: Literal["float32", "bfloat16"], asked: Literal["auto", True, False], device: str
) -> None:
    """It saves up to a fifth of an update on an H100, and a third of PPO's in float32 on a CPU."""
    config = DQNConfig(update_precision=precision, channels_last=asked)
    network = build_network(config, IMAGE, seed=1)
    network.set_update_format(config, IMAGE, torch.device(device))
    layers = [layer for layer in network.modules() if isinstance(layer, Convolution)]
    is_faster = device == "cuda" or precision == "float32"
    assert [layer.channels_last for layer in layers] == [is_faster if asked == "auto" else asked] * 3


def test_convolution_laid_channels_last_answers_in_that_order() -> None:
    """So the layers after it find it there; its weight lies so as well, and so does its gradient."""
    layer = convolution(3, 4, 2, generator())
    x = torch.ones(2, 3, 5, 5)
    assert not layer(x).is_contiguous(memory_format=torch.channels_last)
    to_channels_last(layer)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(layer(x).sum(), [layer.weight])
    assert gradient.stride() == layer.weight.stride() != torch.zeros(4, 3, 2, 2).stride()


@pytest.mark.parametrize("spec", [IMAGE, COLOURS])
def test_one_pass_over_pixels_converts_and_lays_them_channels_last(spec: EnvSpec) -> None:
    """The same numbers as without."""
    images = blank_images(spec, 2).random_(generator=generator())
    laid = as_channels(images, spec, torch.float32, channels_last=True)
    assert laid.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(laid, as_channels(images, spec, torch.float32))


def test_noise_of_several_sources_is_that_of_each_by_itself() -> None:
    """A batch of two actors' environments has the outputs that each would have alone with its own generator."""
    layer = NoisyLinear(4, 3, torch.Generator().manual_seed(1))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))

    def rng(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    alone = []
    for seed, rows in ((7, slice(0, 2)), (8, slice(2, 5))):
        reset_noise(layer, rng(seed), rows=rows.stop - rows.start)
        alone.append(layer(x[rows]))
    reset_noise_rows(layer, [(rng(7), 2), (rng(8), 3)])
    torch.testing.assert_close(layer(x), torch.cat(alone))


def noisy_layers(network: torch.nn.Module) -> list[NoisyLinear]:
    """Return the noisy layers of a network."""
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]


def test_noise_of_a_head_is_drawn_layer_by_layer() -> None:
    """All layers' noise is scaled together; each layer's is what the generator gives next."""
    head = QHead(3, (16, 8), 2, 1, generator(), dueling=True, noise_std=0.5)
    reset_noise(head, generator(7))
    rng = generator(7)
    layers = noisy_layers(head)
    assert len(layers) == 5
    for layer in layers:
        raw = torch.randn(sum(layer.weight.shape), generator=rng)
        assert layer.shared_noise is not None
        assert torch.equal(torch.cat(layer.shared_noise), raw.sign() * raw.abs().sqrt())


def test_noisy_head_passes_as_its_layers_do_alone() -> None:
    """Their parameters are made together for a pass, and only for it."""
    head = QHead(6, (8,), 4, 3, generator(), dueling=True, noise_std=0.5)
    reset_noise(head, generator(7))
    features = torch.randn((5, 6), generator=generator(1))
    q = head(features)
    assert head.state is not None
    action = head.action(features).view(5, 4, 3)
    expected = head.state(features)[:, None] + action - action.mean(dim=1, keepdim=True)
    torch.testing.assert_close(q, expected)
    disable_noise(head)
    assert not torch.allclose(head(features), q)


def test_gradients_of_a_noisy_layer_are_autograds() -> None:
    """Of weight, bias and both sigmas, as of the formula."""
    layer = NoisyLinear(3, 2, generator()).double()
    reset_noise(layer, generator(7))
    x = torch.randn((4, 3), generator=generator(8)).double()
    parameters = [layer.weight, layer.bias, layer.weight_sigma, layer.bias_sigma]
    found = torch.autograd.grad(layer(x).square().sum(), parameters)
    assert layer.shared_noise is not None
    inward, outward = layer.shared_noise
    weight = layer.weight + layer.weight_sigma * torch.outer(outward, inward)
    y = x @ weight.T + layer.bias + layer.bias_sigma * outward
    torch.testing.assert_close(found, torch.autograd.grad(y.square().sum(), parameters))
