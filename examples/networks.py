"""A custom torso for any algorithm: residual blocks on the numbers of an observation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tidemill import EnvSpec
from tidemill.rl.networks.layers.linear import flat


@dataclass(frozen=True)
class ResidualSettings:
    """What `agent.network_settings` may hold."""

    width: int = 64
    """Numbers between the blocks, and features."""
    blocks: int = 2
    """Residual blocks, at least 1."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 1:
            raise ValueError(f"width and blocks must be at least 1, got {self}")


class ResidualTorso(nn.Module):
    """Observations [B, ...] of any dtype -> features float32 [B, outputs]."""

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator, **settings: int) -> None:  # noqa: ARG002
        """Make the layers, as torch does: what they draw is decided by the run's seed too."""
        super().__init__()
        own = ResidualSettings(**settings)
        inputs = math.prod(env_spec.observation_shape) * env_spec.frame_stack
        self.inlet = nn.Linear(inputs, own.width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(own.width), nn.Linear(own.width, own.width), nn.ReLU())
            for _ in range(own.blocks)
        )
        self.outputs = own.width

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        x: Tensor = self.inlet(flat(observation))
        for block in self.blocks:
            x = x + block(x)
        return x
