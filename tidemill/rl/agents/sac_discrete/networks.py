"""The networks of discrete SAC, as its agent and its policy both need them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.linear import linear
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.soft_actor_critic import SACDiscreteConfig
from tidemill.types import EnvSpec


class PerAction(nn.Module):
    """A torso and one or more stacks of layers behind it: observations [B, ...] -> numbers, float32 [E, B, A]."""

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator, stacks: int) -> None:
        super().__init__()
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        features = int(self.torso.outputs)  # type: ignore[arg-type]  # every torso has it
        widths = (features, *config.hidden_sizes, env_spec.num_actions)
        self.stacks = nn.ModuleList(
            nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths)) for _ in range(stacks)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Return [E, B, A]."""
        features = self.torso(observation).float()
        return torch.stack([_through(stack, features) for stack in self.stacks])


def build_actor(config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator) -> PerAction:
    """Return one network from observations [B, ...] to logits, [1, B, A]."""
    return PerAction(config, env_spec, rng, stacks=1)


def build_critic(config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator) -> PerAction:
    """Return two networks, behind one torso, from observations [B, ...] to the value of each action, [2, B, A]."""
    return PerAction(config, env_spec, rng, stacks=2)


def _through(layers: nn.Module, x: Tensor) -> Tensor:
    *hidden, last = layers.children()
    for layer in hidden:
        x = torch.relu(layer(x))
    output: Tensor = last(x)
    return output
