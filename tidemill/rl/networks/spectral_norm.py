"""Spectral normalisation of convolutions and linear layers (Miyato et al. 2018)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations


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
