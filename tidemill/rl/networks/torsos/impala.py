"""The residual network of IMPALA (Espeholt et al. 2018, figure 3, right), by settings that of BTR (Clark et al. 2024).

BTR's has twice the channels (`width: 2`), spectral normalisation of the residual blocks' convolutions (`spectral_norm:
true`), and an adaptive max pool to 6 x 6 at the end (`pool: 6`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tidemill.rl.checks import require
from tidemill.rl.networks.image import as_channels, convolution, image_channels, pixel_scale
from tidemill.rl.networks.torsos import NetworkSetting
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

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        inner: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
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
        self.outputs = channels * rows * columns

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        image = as_channels(observation, self._env_spec, next(self.parameters()).dtype)
        features: Tensor = self.sections(image)
        return features.flatten(1)


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
