"""DQN's network, as its agent and its policy both need it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tidemill.rl.losses import even_levels
from tidemill.rl.networks.linear import Linear, linear, xavier_uniform
from tidemill.rl.networks.precision import FLOAT32, Precision, acting_dtype
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec


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


class QNetwork(nn.Module):
    """A torso and a head: observations [B, ...] -> K numbers for each action, float32 [B, A, K].

    With `iqn` the numbers are quantiles, of levels that are joined to the features between torso and head.
    """

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        features = int(self.torso.outputs)  # type: ignore[arg-type]  # every torso has it
        self._levels = config.atoms if config.distribution == "iqn" else 0
        self.embedding = QuantileEmbedding(features, config.cosines, rng) if self._levels else None
        self.head = QHead(
            features,
            config.hidden_sizes,
            env_spec.num_actions,
            1 if self._levels else config.values_per_action,
            rng,
            dueling=config.dueling,
            noise_std=config.noisy_std if config.noisy else 0.0,
        )
        if config.initialisation == "xavier":
            xavier_uniform(self, rng)
        self.matmul_precision = FLOAT32
        """In which format updates multiply."""

    def forward(self, observation: Tensor, level: Tensor | None = None) -> Tensor:
        """Return [B, A, K]; what they mean says `tidemill.rl.agents.dqn.loss`.

        Args:
            observation: [B, ...].
            level: Of `iqn`, which quantiles, [B, K]; without it as many as the settings say, evenly spread.
        """
        with self.matmul_precision():
            features = self.torso(observation)
            if self.embedding is None:
                output: Tensor = self.head(features)
                return output
            if level is None:
                level = even_levels(self._levels, features.device).expand(len(features), -1)
            quantiles: Tensor = self.head(self.embedding(features, level))  # [B, K, A, 1]
        return quantiles.squeeze(-1).transpose(1, 2)

    def set_compute_dtype(self, precision: Precision, images: Tensor) -> None:
        """Put all but the last layers in the number format asked for; `images` is a batch that `auto` is timed on."""
        dtype = acting_dtype(self.torso, images, precision)
        rows = len(images) * max(self._levels, 1)
        for module in (self.torso, *self.head.hidden_layers()):
            module.to(dtype)
            if isinstance(module, Linear):
                module.pack(rows)


def build_network(config: DQNConfig, env_spec: EnvSpec, seed: int) -> QNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return QNetwork(config, env_spec, torch.Generator().manual_seed(seed))
