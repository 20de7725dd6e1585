"""The convolutional torso of Atari agents (Mnih et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.networks.mlp import MLP, initialise_linear

LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of each convolution."""

GROUPS = 16
"""Groups of the group norm after each convolution."""


class NatureCNN(nn.Module):
    """uint8 images [B, C, H, W] -> features [B, outputs] through three convolutions and an MLP.

    With `group_norm` each convolution has no bias and is followed by a group norm, and all weights start
    Xavier uniform; without, layers start as torch's do.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        hidden_sizes: tuple[int, ...],
        group_norm: bool,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for outputs, kernel, stride in LAYERS:
            layers.append(_convolution(channels, outputs, kernel, stride, bias=not group_norm, rng=rng))
            if group_norm:
                layers.append(nn.GroupNorm(GROUPS, outputs))
            layers.append(nn.ReLU(inplace=True))
            channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.convolutions = nn.Sequential(*layers)
        self.torso = MLP(channels * height * width, hidden_sizes, rng)
        self.outputs = self.torso.outputs
        if group_norm:
            _xavier_uniform(self, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs] of uint8 observations [B, C, H, W]."""
        image = observation.to(next(self.parameters()).dtype)  # exact: bfloat16 holds every integer up to 256
        features: Tensor = self.torso(self.convolutions(image.mul_(1.0 / 255.0)))
        return features


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, bias: bool, rng: torch.Generator) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, bias=bias)
    unused = torch.empty(outputs)
    initialise_linear(layer.weight, unused if layer.bias is None else layer.bias, inputs * kernel * kernel, rng)
    return layer


def _xavier_uniform(module: nn.Module, rng: torch.Generator) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=rng)
