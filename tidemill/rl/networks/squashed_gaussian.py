"""The stochastic actor of SAC: a Gaussian squashed by tanh (Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidemill.rl.networks.mlp import MLP, linear

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class Gaussian(NamedTuple):
    """Mean and log standard deviation before the squash, each [B, A]."""

    mean: Tensor
    log_std: Tensor


class ActorNetwork(nn.Module):
    """Observations [B, ...] -> the Gaussian of unsquashed actions."""

    def __init__(self, inputs: int, action_size: int, hidden_sizes: tuple[int, ...], rng: torch.Generator) -> None:
        super().__init__()
        self.torso = MLP(inputs, hidden_sizes, rng)
        self.head = linear(self.torso.outputs, 2 * action_size, rng)

    def forward(self, observation: Tensor) -> Gaussian:
        """Return mean and log standard deviation, each [B, A]."""
        mean, log_std = self.head(self.torso(observation)).chunk(2, dim=-1)
        return Gaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))


def sample(gaussian: Gaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std * noise) [B, A] and their log-density [B].

    Uses log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact for large u.
    """
    assert gaussian.mean.ndim == 2, f"mean {tuple(gaussian.mean.shape)} must be [B, A]"
    assert gaussian.mean.shape == noise.shape, "mean and noise differ in shape"
    raw = torch.addcmul(gaussian.mean, gaussian.log_std.exp(), noise)
    # the density of `raw`, with (raw - mean) / std = noise, less the log of the squash's slope
    log_density = -0.5 * noise.square() - gaussian.log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
    return torch.tanh(raw), (log_density - log_slope).sum(dim=-1)


def mode(gaussian: Gaussian) -> Tensor:
    """Return the squashed mean [B, A], the action of a deterministic evaluation."""
    return torch.tanh(gaussian.mean)
