"""The networks of SAC, as its agent and its policy both need them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tidemill.rl.networks.ensemble_mlp import EnsembleMLP, TorsoEnsembleMLP
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec


def build_actor(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return one network from observations [B, ...] to mean and log standard deviation, [1, B, 2 A]."""
    outputs = 2 * env_spec.action_size
    return _behind_torso(config, env_spec, rng, config.hidden_sizes, ensemble_size=1, actions=0, outputs=outputs)


def build_critic(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return the critics, behind one torso, from observations [B, ...] and actions [B, A] to [critics, B, K].

    K is the number of quantiles, or 1 for a value.
    """
    return _behind_torso(
        config,
        env_spec,
        rng,
        config.critic_sizes or config.hidden_sizes,
        ensemble_size=config.critics,
        actions=env_spec.action_size,
        outputs=config.quantiles or 1,
        layer_norm=config.critic_layer_norm,
    )


def _behind_torso(
    config: SACConfig,
    env_spec: EnvSpec,
    rng: torch.Generator,
    hidden_sizes: Sequence[int],
    *,
    ensemble_size: int,
    actions: int,
    outputs: int,
    layer_norm: bool = False,
) -> EnsembleMLP:
    """Return an ensemble whose gradients are written out, behind a torso unless that is `mlp`."""
    plain = config.network == "mlp" and not env_spec.observation_parts
    torso = None if plain else build_torso(config.network, env_spec, rng, config.network_settings)
    features = env_spec.observation_size if torso is None else int(torso.outputs)  # type: ignore[arg-type]
    mlp = EnsembleMLP(ensemble_size, features + actions, hidden_sizes, outputs, rng, layer_norm, config.crossq)
    mlp.requires_grad_(False)
    return mlp if torso is None else TorsoEnsembleMLP(torso, mlp)
