"""TD3's learner side (Fujimoto et al. 2018, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.deterministic_agent import ActorCritic, DeterministicAgent
from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.loss import actor_loss, smoothed_action
from tidemill.rl.agents.td3.networks import build_actor, build_critic, target_of, values
from tidemill.rl.losses import twin_td_loss
from tidemill.rl.optimizers import Adam
from tidemill.rl.process_group import draw_normal
from tidemill.types import EnvSpec


class TD3Learning:
    """How actor and twin critics learn: the critics at each update, the actor and all targets now and then."""

    def __init__(self, config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._config, self._noise = config, torch.Generator(device).manual_seed(seed)
        self.networks = ActorCritic(
            actor,
            critic,
            Adam(actor.parameters(), config.actor_learning_rate),
            Adam(critic.parameters(), config.critic_learning_rate),
            tau=config.tau,
            noise=self._noise,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critics, then every `policy_delay` updates the actor and all targets."""
        observation = batch["observation"]
        q = values(self.networks.critic, observation, batch["action"].flatten(1))
        result = twin_td_loss(q, self._target(batch), weight, self._config.huber_delta)
        self.networks.update_critic(result.loss)
        metrics = {"loss": result.loss.detach(), "q": q.detach().mean()}
        if self.networks.state.updates % self._config.policy_delay == 0:
            loss = actor_loss(values(self.networks.critic, observation, self.networks.actor(observation)))
            self.networks.update_actor(loss)
            self.networks.update_targets()
            metrics["actor_q"] = -loss.detach()
        return Update(result.td_error, metrics)

    @torch.no_grad()
    def _target(self, batch: Mapping[str, Tensor]) -> Tensor:
        next_observation, group = batch["bootstrap_observation"], self.networks.state.group
        action = self.networks.target_actor(next_observation)
        noise = draw_normal(action.shape, group, self._noise, action.device) * self._config.target_noise
        action = smoothed_action(action, noise, self._config.noise_clip)
        return target_of(self.networks.target_critic, next_observation, action, batch)


def build(config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side of TD3; `tidemill.rl.agents.registry` calls this."""
    learning = TD3Learning(config, env_spec, device, seed)
    networks, delay = learning.networks, config.policy_delay
    return DeterministicAgent(networks, learning.update, env_spec.frame_stack, config, policy_delay=delay)
