"""No torso at all: the observation's numbers side by side, bytes as 0 .. 1, for the linear layers that follow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import flat
from tidemill.types import EnvSpec


class Flat(nn.Module):
    """Observations [B, ...] of any dtype -> float32 [B, outputs]."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs]."""
        return flat(observation)


def build(env_spec: EnvSpec, rng: torch.Generator) -> Flat:  # noqa: ARG001 - it has no parameters to draw
    """Return the torso of vectors."""
    return Flat(math.prod(env_spec.observation_shape) * env_spec.frame_stack)
