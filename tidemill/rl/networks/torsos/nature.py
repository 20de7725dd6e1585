"""The three convolutions of Mnih et al. (2015), Methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.image import as_channels, convolution, lies_channels_last, pixel_scale
from tidemill.rl.networks.torsos import image_channels
from tidemill.types import EnvSpec

Layers = tuple[tuple[int, int, int], ...]
"""Channels, kernel and stride of each convolution."""
LAYERS: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class NatureCNN(nn.Module):
    """Images [B, ...] -> features [B, outputs]; with `groups` each convolution has a group norm instead of a bias."""

    def __init__(
        self, name: str, env_spec: EnvSpec, rng: torch.Generator, groups: int = 0, shapes: Layers = LAYERS
    ) -> None:
        super().__init__()
        self._env_spec = env_spec
        channels, height, width = image_channels(name, env_spec)
        layers: list[nn.Module] = []
        scale = pixel_scale(env_spec)
        for outputs, kernel, stride in shapes:
            layers.append(convolution(channels, outputs, kernel, rng, stride=stride, bias=not groups, scale=scale))
            if groups:
                layers.append(nn.GroupNorm(groups, outputs))
            layers.append(nn.ReLU(inplace=True))
            scale = 1.0
            channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.convolutions = nn.Sequential(*layers)
        self.outputs = channels * height * width

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        dtype = next(self.parameters()).dtype
        image = as_channels(observation, self._env_spec, dtype, channels_last=lies_channels_last(self))
        features: Tensor = self.convolutions(image)
        return features.flatten(1)


def build(env_spec: EnvSpec, rng: torch.Generator) -> NatureCNN:
    """Return the torso; raises ConfigError if observations are not images, or too small."""
    return NatureCNN("nature", env_spec, rng)
