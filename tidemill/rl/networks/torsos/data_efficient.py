"""The two convolutions of data-efficient Rainbow (van Hasselt et al. 2019)."""

from __future__ import annotations

import torch

from tidemill.rl.networks.torsos.nature import NatureCNN
from tidemill.types import EnvSpec

LAYERS = ((32, 5, 5), (64, 5, 5))
"""Channels, kernel and stride of each convolution."""


def build(env_spec: EnvSpec, rng: torch.Generator) -> NatureCNN:
    """Return the torso; raises ConfigError if observations are not images, or too small."""
    return NatureCNN("data_efficient", env_spec, rng, shapes=LAYERS)
