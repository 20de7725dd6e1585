"""DQN's network, as its agent and its policy both need it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.networks.linear import Linear, xavier_uniform
from tidemill.rl.networks.precision import FLOAT32, Precision, acting_dtype
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.torso import build_torso
from tidemill.types import EnvSpec


class QNetwork(nn.Module):
    """A torso and a head: observations [B, ...] -> K numbers for each action, float32 [B, A, K]."""

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        self.head = QHead(
            int(self.torso.outputs),  # type: ignore[arg-type]  # every torso has it
            config.hidden_sizes,
            env_spec.num_actions,
            config.values_per_action,
            rng,
            dueling=config.dueling,
            noise_std=config.noisy_std if config.noisy else 0.0,
        )
        if config.initialisation == "xavier":
            xavier_uniform(self, rng)
        self.matmul_precision = FLOAT32
        """In which format updates multiply."""

    def forward(self, observation: Tensor) -> Tensor:
        """Return [B, A, K]; what they mean says `tidemill.rl.agents.dqn.loss`."""
        with self.matmul_precision():
            output: Tensor = self.head(self.torso(observation))
        return output

    def set_compute_dtype(self, precision: Precision, images: Tensor) -> None:
        """Put all but the last layers in the number format asked for; `images` is a batch that `auto` is timed on."""
        dtype = acting_dtype(self.torso, images, precision)
        for module in (self.torso, *self.head.hidden_layers()):
            module.to(dtype)
            if isinstance(module, Linear):
                module.pack(len(images))


def build_network(config: DQNConfig, env_spec: EnvSpec, seed: int) -> QNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return QNetwork(config, env_spec, torch.Generator().manual_seed(seed))
