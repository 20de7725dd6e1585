"""The residual network of IMPALA (Espeholt et al. 2018, figure 3, right), by settings that of BTR (Clark et al. 2024).

BTR's has twice the channels (`width: 2`), spectral normalisation of the residual blocks' convolutions (`spectral_norm:
true`), and an adaptive max pool to 6 x 6 at the end (`pool: 6`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tidemill.rl.checks import require
from tidemill.rl.networks.layers.image import as_channels, convolution, lies_channels_last, pixel_scale
from tidemill.rl.networks.torsos import NetworkSetting, image_channels
from tidemill.types import EnvSpec


def normalise_spectrally(network: nn.Module, rng: torch.Generator) -> None:
    """Have every convolution and linear layer of a network pass with its weight divided by the largest singular value.

    The value comes from one step of power iteration at each pass of a network in training; one in evaluation uses what
    came with its parameters. The iteration starts at vectors that `rng` decides.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        for layer in layers:
            parametrizations.spectral_norm(layer)


def normalised_weights(layers: Sequence[nn.Module]) -> list[Tensor]:
    """Compute `weight` of each layer as `normalise_spectrally` would leave it, with one iteration for all of a shape.

    One by one, the layers' products, norms and casts are most of what a pass of BTR launches on a GPU. Iteration and
    division are made in the parameters' number format; within autocast its format is what the weights come in. They
    lie channels last in memory if the layers' images do.
    """
    by_shape: dict[torch.Size, list[int]] = {}
    for index, layer in enumerate(layers):
        by_shape.setdefault(_original(layer).shape, []).append(index)
    weights: dict[int, Tensor] = {}
    for indices in by_shape.values():
        weights.update(zip(indices, _normalised_alike([layers[index] for index in indices]), strict=True))
    return [weights[index] for index in range(len(layers))]


def _original(layer: nn.Module) -> Tensor:
    weight: Tensor = layer.get_parameter("parametrizations.weight.original")
    return weight


def _normalised_alike(layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """Return the weights of layers of one shape, divided by their largest singular values."""
    lefts = [layer.get_buffer("parametrizations.weight.0._u") for layer in layers]
    rights = [layer.get_buffer("parametrizations.weight.0._v") for layer in layers]
    device = lefts[0].device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else lefts[0].dtype
    with torch.autocast(device, enabled=False):
        weight = torch.stack([_original(layer) for layer in layers])
        matrix = weight.flatten(2)
        left, right = torch.stack(lefts).unsqueeze(-1), torch.stack(rights).unsqueeze(-1)
        if layers[0].training:
            with torch.no_grad():
                left = functional.normalize(matrix @ right, dim=1)
                right = functional.normalize(matrix.mT @ left, dim=1)
                torch._foreach_copy_([*lefts, *rights], [*left.squeeze(-1).unbind(), *right.squeeze(-1).unbind()])
        largest = (left * (matrix @ right)).sum(1)
        divided = weight / largest.view(-1, *(1,) * (weight.ndim - 1))
        return (_Laid.apply(divided, dtype) if lies_channels_last(layers[0]) else divided.to(dtype)).unbind()  # type: ignore[no-untyped-call]  # torch's


class _Laid(torch.autograd.Function):
    """Weights [N, O, I, H, W] in another format and channels last, and gradients back, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ANN401 - torch's
        """Return the weights in `dtype`; in memory they lie [N, O, H, W, I]."""
        ctx.dtype = weight.dtype
        return weight.movedim(2, -1).to(dtype, memory_format=torch.contiguous_format).movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's
        """Return the gradient in the weights' format and order."""
        return gradient.to(ctx.dtype, memory_format=torch.contiguous_format), None


CHANNELS = (16, 32, 32)
"""Channels of each section at width 1; a section halves the image's sides."""


class ResidualBlock(nn.Module):
    """ReLU, convolution, ReLU, convolution, and what came in added: [B, C, H, W] -> the same."""

    def __init__(self, channels: int, rng: torch.Generator, *, spectral_norm: bool) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, rng, padding=1)
        self.second = convolution(channels, channels, 3, rng, padding=1)
        if spectral_norm:
            normalise_spectrally(self, rng)

    def forward(self, x: Tensor, weights: Sequence[Tensor | None] = (None, None)) -> Tensor:
        """Return [B, C, H, W]; `weights` take the place of the two convolutions' own."""
        inner: Tensor = self.second(torch.relu(self.first(torch.relu(x), weights[0])), weights[1])
        return x + inner


class ImpalaResNet(nn.Module):
    """Images [B, ...] -> features [B, outputs] through three sections of a convolution, a pool and two blocks."""

    def __init__(
        self, env_spec: EnvSpec, rng: torch.Generator, width: int = 1, *, spectral_norm: bool = False, pool: int = 0
    ) -> None:
        """Make the layers.

        Args:
            env_spec: Shapes of the environment, whose observations are images.
            rng: Draws the initial parameters.
            width: What the channels of every section are multiplied by.
            spectral_norm: Whether the residual blocks' weights are divided by their largest singular value.
            pool: Sides of the features after an adaptive max pool; 0 leaves them as they are.
        """
        super().__init__()
        self._env_spec = env_spec
        channels, rows, columns = image_channels("impala", env_spec)
        layers: list[nn.Module] = []
        scale = pixel_scale(env_spec)
        for outputs in (width * section for section in CHANNELS):
            layers += [
                convolution(channels, outputs, 3, rng, padding=1, scale=scale),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(outputs, rng, spectral_norm=spectral_norm),
                ResidualBlock(outputs, rng, spectral_norm=spectral_norm),
            ]
            scale = 1.0
            channels, rows, columns = outputs, (rows + 1) // 2, (columns + 1) // 2
        if pool:
            layers.append(nn.AdaptiveMaxPool2d(pool))
            rows = columns = pool
        self.sections = nn.Sequential(*layers, nn.ReLU(inplace=True))
        self._spectral_norm = spectral_norm
        self.outputs = channels * rows * columns

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        dtype = next(self.parameters()).dtype
        image = as_channels(observation, self._env_spec, dtype, channels_last=lies_channels_last(self))
        if not self._spectral_norm:
            features: Tensor = self.sections(image)
            return features.flatten(1)
        blocks = [layer for layer in self.sections if isinstance(layer, ResidualBlock)]
        weights = iter(normalised_weights([layer for block in blocks for layer in (block.first, block.second)]))
        x = image
        for layer in self.sections:
            x = layer(x, (next(weights), next(weights))) if isinstance(layer, ResidualBlock) else layer(x)
        return x.flatten(1)


def build(
    env_spec: EnvSpec,
    rng: torch.Generator,
    *,
    width: NetworkSetting = 1,
    spectral_norm: NetworkSetting = False,
    pool: NetworkSetting = 0,
) -> ImpalaResNet:
    """Return the torso of these settings; raises ConfigError if one is out of range, or observations do not fit."""
    for name, value, least in (("width", width, 1), ("pool", pool, 0)):
        fits = type(value) is int and value >= least
        require(fits, f"network_settings.{name}", value, f"a whole number of {least} or more")
    require(type(spectral_norm) is bool, "network_settings.spectral_norm", spectral_norm, "true or false")
    assert isinstance(width, int)  # checked above
    assert isinstance(pool, int)
    return ImpalaResNet(env_spec, rng, width, spectral_norm=bool(spectral_norm), pool=pool)
