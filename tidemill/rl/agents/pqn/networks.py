"""PQN's network, as its agent and its policy both need it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.linear import linear
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.types import EnvSpec


class NormalisedQNetwork(nn.Module):
    """A torso, hidden layers with a layer norm (Ba et al. 2016) and a ReLU each: observations [B, ...] -> Q [B, A].

    The norm bounds how far values of unseen states can run off, which is what a target network is for elsewhere
    (Gallici et al. 2024).
    """

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        widths = (int(self.torso.outputs), *config.hidden_sizes)  # type: ignore[arg-type]  # every torso has it
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in config.hidden_sizes)
        self.head = linear(widths[-1], env_spec.num_actions, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the value of every action, float32 [B, A]."""
        x: Tensor = self.torso(observation).float()
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        q: Tensor = self.head(x)
        return q


def build_network(config: PQNConfig, env_spec: EnvSpec, seed: int) -> NormalisedQNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return NormalisedQNetwork(config, env_spec, torch.Generator().manual_seed(seed))
