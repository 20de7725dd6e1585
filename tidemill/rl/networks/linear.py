"""Linear layers and the random numbers they start from."""

from __future__ import annotations

import math

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
