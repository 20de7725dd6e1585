"""Initial weights after Glorot & Bengio (2010)."""

from __future__ import annotations

import torch
from torch import nn


def xavier_uniform(network: nn.Module, rng: torch.Generator) -> None:
    """Draw the weights of every convolution and linear layer anew, uniform with variance 2 / (in + out)."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=rng)
