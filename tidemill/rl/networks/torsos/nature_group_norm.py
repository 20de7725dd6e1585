"""The three convolutions of `nature`, each without bias and followed by a group norm (Wu & He 2018)."""

from __future__ import annotations

import torch

from tidemill.rl.networks.torsos.nature import NatureCNN
from tidemill.types import EnvSpec

GROUPS = 16
"""Groups that the channels of each layer are normalised in."""


def build(env_spec: EnvSpec, rng: torch.Generator) -> NatureCNN:
    """Return the torso; raises ConfigError if observations are not images, or too small."""
    return NatureCNN("nature_group_norm", env_spec, rng, groups=GROUPS)
