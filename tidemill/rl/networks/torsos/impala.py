"""The residual network of IMPALA (Espeholt et al. 2018, figure 3, right)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.networks.image import as_channels, convolution, image_channels, pixel_scale
from tidemill.types import EnvSpec

CHANNELS = (16, 32, 32)
"""Channels of each section; a section halves the image's sides."""

MIN_SIZE = 8
"""Pixels of the smallest side: three halvings leave one."""


class ResidualBlock(nn.Module):
    """ReLU, convolution, ReLU, convolution, and what came in added: [B, C, H, W] -> the same."""

    def __init__(self, channels: int, rng: torch.Generator) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, rng, padding=1)
        self.second = convolution(channels, channels, 3, rng, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, H, W]."""
        inner: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + inner


class ImpalaResNet(nn.Module):
    """Images [B, ...] -> features [B, outputs] through three sections of a convolution, a pool and two blocks."""

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self._env_spec = env_spec
        channels, height, width = image_channels("impala", env_spec, MIN_SIZE)
        layers: list[nn.Module] = []
        scale = pixel_scale(env_spec)
        for outputs in CHANNELS:
            layers += [
                convolution(channels, outputs, 3, rng, padding=1, scale=scale),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(outputs, rng),
                ResidualBlock(outputs, rng),
            ]
            scale = 1.0
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.sections = nn.Sequential(*layers, nn.ReLU(inplace=True))
        self.outputs = channels * height * width

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        image = as_channels(observation, self._env_spec, next(self.parameters()).dtype)
        features: Tensor = self.sections(image)
        return features.flatten(1)


def build(env_spec: EnvSpec, rng: torch.Generator) -> ImpalaResNet:
    """Return the torso; raises ConfigError if observations are no images, or too small."""
    return ImpalaResNet(env_spec, rng)
