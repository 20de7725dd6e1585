"""Fully connected torsos and the random numbers networks start from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def initialise_linear(weight: Tensor, bias: Tensor, fan_in: int, rng: torch.Generator) -> None:
    """Fill a linear layer as `torch.nn.Linear` does, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from `rng`."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        weight.uniform_(-bound, bound, generator=rng)
        bias.uniform_(-bound, bound, generator=rng)


def linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """Return a linear layer whose parameters come from `rng`, on the CPU."""
    layer = nn.Linear(inputs, outputs)
    initialise_linear(layer.weight, layer.bias, inputs, rng)
    return layer


class MLP(nn.Module):
    """Linear layers with a ReLU after each: [B, ...] -> [B, outputs]."""

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], rng: torch.Generator) -> None:
        super().__init__()
        widths = (inputs, *hidden_sizes)
        self.layers = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.outputs = widths[-1]

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs] of observations [B, ...] of any float or integer dtype."""
        x = observation.flatten(1).to(next(self.parameters(), torch.empty(0)).dtype)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
