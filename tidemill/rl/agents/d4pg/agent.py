"""D4PG's learner side (Barth-Maron et al. 2018, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.agents.d4pg.loss import actor_loss, critic_loss
from tidemill.rl.agents.d4pg.networks import build_actor, build_critic, logits_taken, target_of
from tidemill.rl.agents.deterministic_agent import ActorCritic, DeterministicAgent
from tidemill.rl.agents.interface import Update
from tidemill.rl.losses.categorical import atoms, expectation
from tidemill.rl.optimizers import Adam
from tidemill.types import EnvSpec


class D4PGLearning:
    """How an actor and a critic that predicts distributions of returns learn."""

    def __init__(self, config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._support = atoms(config.value_min, config.value_max, config.num_atoms, device)
        self.networks = ActorCritic(
            actor,
            critic,
            Adam(actor.parameters(), config.actor_learning_rate),
            Adam(critic.parameters(), config.critic_learning_rate),
            tau=config.tau,
            target_update_period=config.target_update_period,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critic, then the actor, and move the targets if it is time.

        New priorities are how far each prediction is from its target, a divergence in nats.
        """
        networks, observation = self.networks, batch["observation"]
        logits = logits_taken(networks.critic, batch)
        target = target_of(networks.target_actor, networks.target_critic, batch, self._support)
        result = critic_loss(logits, target, weight)
        networks.update_critic(result.loss)
        loss = actor_loss(networks.critic(observation, networks.actor(observation)), self._support)
        networks.update_actor(loss)
        networks.update_targets()
        q = expectation(logits.detach(), self._support).mean()
        return Update(result.divergence, {"loss": result.loss.detach(), "q": q, "actor_q": -loss.detach()})


def build(config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side of D4PG; `tidemill.rl.agents.registry` calls this."""
    learning = D4PGLearning(config, env_spec, device, seed)
    return DeterministicAgent(learning.networks, learning.update, env_spec.frame_stack, config)
