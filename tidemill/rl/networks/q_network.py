"""State-action values of discrete actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tidemill.rl.networks.mlp import MLP, linear
from tidemill.rl.networks.nature import NatureCNN
from tidemill.types import EnvSpec


class DuelingHead(nn.Module):
    """Q = V + A - mean(A) (Wang et al. 2016, eq. 9), each stream one linear layer: [B, F] -> [B, A]."""

    def __init__(self, inputs: int, num_actions: int, rng: torch.Generator) -> None:
        super().__init__()
        self.value = linear(inputs, 1, rng)
        self.advantage = linear(inputs, num_actions, rng)

    def forward(self, features: Tensor) -> Tensor:
        """Return Q [B, A]."""
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


class QNetwork(nn.Module):
    """A torso and a plain or dueling head: observations [B, ...] -> Q [B, A]."""

    def __init__(
        self,
        env_spec: EnvSpec,
        network: str,
        hidden_sizes: tuple[int, ...],
        dueling: bool,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.torso = _torso(env_spec, network, hidden_sizes, rng)
        head = DuelingHead if dueling else linear
        self.head: nn.Module = head(self.torso.outputs, env_spec.num_actions, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return Q [B, A], float32 whatever the torso computes in."""
        q: Tensor = self.head(self.torso(observation).float())
        return q


def _torso(env_spec: EnvSpec, network: str, hidden_sizes: tuple[int, ...], rng: torch.Generator) -> MLP | NatureCNN:
    shape = env_spec.observation_shape
    if network == "mlp":
        return MLP(math.prod(shape) * env_spec.frame_stack, hidden_sizes, rng)
    height, width = shape
    image = (env_spec.frame_stack, height, width)  # a gray image's channels are its frames
    return NatureCNN(image, hidden_sizes, network == "nature_group_norm", rng)
