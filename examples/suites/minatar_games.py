"""MinAtar's five games (Young & Tian, 2019) as environments, and the convolution of their authors' DQN.

`--env.id suites.minatar_games:MinAtar/Breakout-v0` has all six actions, `-v1` those that the game uses. Importing this
module registers both.
"""

from __future__ import annotations

import math

import torch
from minatar.gym import register_envs
from torch import Tensor, nn

from tidemill import EnvSpec

register_envs()

CHANNELS = 16


class MinAtarTorso(nn.Module):
    """Observations bool [B, 10, 10, objects] -> features float32 [B, 1024] of a 3x3 convolution.

    Args:
        env_spec: The environment; its frames are not stacked.
        rng: Unused: torch draws the weights, by the run's seed.
        norm: Whether a layer norm follows the convolution, as PQN's authors have it.
    """

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator, *, norm: bool = False) -> None:  # noqa: ARG002
        super().__init__()
        height, width, objects = env_spec.observation_shape
        shape = (CHANNELS, height - 2, width - 2)
        self.convolution = nn.Conv2d(objects, CHANNELS, kernel_size=3)
        self.norm = nn.LayerNorm(shape) if norm else nn.Identity()
        self.outputs = math.prod(shape)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, 1024]."""
        images = observation.movedim(-1, -3).float()
        features: Tensor = torch.relu(self.norm(self.convolution(images))).flatten(1)
        return features
