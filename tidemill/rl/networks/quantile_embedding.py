"""Features that also say which quantile is asked for (Dabney et al. 2018b, IQN)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tidemill.rl.networks.linear import linear


class QuantileEmbedding(nn.Module):
    """Features [B, F] and levels [B, K] -> [B, K, F], each feature times what the level makes of it (ibid., eq. 4).

    A level t is described by cos(pi * i * t) for i from 0 to `cosines` - 1, and a linear layer with ReLU.
    """

    def __init__(self, features: int, cosines: int, rng: torch.Generator) -> None:
        super().__init__()
        self.layer = linear(cosines, features, rng)
        self._cosines = cosines

    def forward(self, features: Tensor, level: Tensor) -> Tensor:
        """Return [B, K, F] in the features' number format."""
        order = torch.arange(self._cosines, device=level.device, dtype=level.dtype)
        waves = torch.cos(math.pi * order * level[:, :, None])
        return features[:, None, :] * torch.relu(self.layer(waves)).to(features.dtype)
