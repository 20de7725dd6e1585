"""The torso of observations of several parts: a network for each, whose features are joined."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import linear
from tidemill.types import EnvSpec

VECTOR_FEATURES = 64
"""Features of each vector beside images, which would otherwise be a few among thousands."""

_FLOAT_BYTES = 4


class PartsTorso(nn.Module):
    """Packed observations [B, bytes], or [B, stack, bytes], -> features [B, outputs].

    Images pass through a torso each. Beside images each vector passes through a layer of `VECTOR_FEATURES` rectified
    units; without images vectors are laid side by side, for the torso that is asked for or for the layers that follow.
    """

    def __init__(self, env_spec: EnvSpec, rng: torch.Generator, build: Callable[[EnvSpec], nn.Module]) -> None:
        """Make the networks.

        Args:
            env_spec: Whose observations have parts.
            rng: Draws the initial parameters.
            build: Makes the torso of observations of one part.
        """
        super().__init__()
        stack = env_spec.frame_stack
        vectors = [part for part in env_spec.observation_parts if not part.is_image]
        self._images = [part for part in env_spec.observation_parts if part.is_image]
        self._sizes = [math.prod(part.shape) for part in vectors]
        self.images = nn.ModuleList(build(EnvSpec(part.shape, part.dtype, stack)) for part in self._images)
        self.vectors, self.joined = nn.ModuleList(), None
        outputs = [int(torso.outputs) for torso in self.images]  # type: ignore[arg-type]  # every torso has it
        if self._images:
            self.vectors.extend(linear(size * stack, VECTOR_FEATURES, rng) for size in self._sizes)
            outputs += [VECTOR_FEATURES] * len(self._sizes)
        else:
            self.joined = build(EnvSpec((sum(self._sizes),), "float32", stack))
            outputs += [int(self.joined.outputs)]  # type: ignore[arg-type]
        self.outputs = sum(outputs)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, outputs], float32."""
        end = sum(self._sizes) * _FLOAT_BYTES
        numbers = observation[..., :end].clone(memory_format=torch.contiguous_format).view(torch.float32)
        if self.joined is not None:
            features: Tensor = self.joined(numbers)
            return features
        parts = []
        for part, torso in zip(self._images, self.images, strict=True):
            begin, end = end, end + math.prod(part.shape)
            parts.append(torso(observation[..., begin:end].unflatten(-1, part.shape)))
        for vector, layer in zip(numbers.split(self._sizes, dim=-1), self.vectors, strict=True):
            parts.append(torch.relu(layer(vector.flatten(1))))
        return torch.cat([part.float() for part in parts], dim=1)
