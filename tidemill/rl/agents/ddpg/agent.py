"""DDPG's learner side (Lillicrap et al. 2016, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.ddpg.config import DDPGConfig
from tidemill.rl.agents.ddpg.loss import actor_loss
from tidemill.rl.agents.ddpg.networks import build_actor, build_critic, target_of, values_taken
from tidemill.rl.agents.deterministic_agent import ActorCritic, DeterministicAgent
from tidemill.rl.agents.interface import Update
from tidemill.rl.losses import td_loss
from tidemill.rl.optimizers import Adam
from tidemill.types import EnvSpec


class DDPGLearning:
    """How actor and critic learn: both at each update, and their targets follow slowly."""

    def __init__(self, config: DDPGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._config = config
        self.networks = ActorCritic(
            actor,
            critic,
            Adam(actor.parameters(), config.actor_learning_rate),
            Adam(critic.parameters(), config.critic_learning_rate, weight_decay=config.critic_weight_decay),
            tau=config.tau,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critic, then the actor, then move both targets."""
        networks, observation = self.networks, batch["observation"]
        q, target = (
            values_taken(networks.critic, batch),
            target_of(networks.target_actor, networks.target_critic, batch),
        )
        result = td_loss(q, target, weight, huber=self._config.loss == "huber")
        networks.update_critic(result.loss)
        actor_q = networks.critic(observation, networks.actor(observation)).squeeze(-1)
        networks.update_actor(actor_loss(actor_q))
        networks.update_targets()
        metrics = {"loss": result.loss.detach(), "q": q.detach().mean(), "actor_q": actor_q.detach().mean()}
        return Update(result.td_error.abs(), metrics)


def build(config: DDPGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side of DDPG; `tidemill.rl.agents.registry` calls this."""
    learning = DDPGLearning(config, env_spec, device, seed)
    return DeterministicAgent(learning.networks, learning.update, env_spec.frame_stack, config)
