"""DDPG: the deterministic policy gradient with slow targets (Lillicrap et al. 2016, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.deterministic import ActorCritic, DeterministicAgent, DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext, Update
from tidemill.rl.losses import assert_rank, td_loss
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor, behind_torso
from tidemill.rl.settings.deterministic import DDPGConfig
from tidemill.types import EnvSpec

LAST_BOUND = 3e-3
"""Bound on the last layers' first parameters (ibid., section 7)."""


def td_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor) -> Tensor:
    """Return R + discount * Q'(s', mu'(s')), [B], without a gradient (ibid., eq. 5).

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: The target critic's value of the target actor's action, [B].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount, bootstrap_q=bootstrap_q)
    return (n_step_return + bootstrap_discount * bootstrap_q).detach()


def actor_loss(q: Tensor) -> Tensor:
    """Return -mean Q(s, mu(s)), []: its gradient is the deterministic policy gradient (ibid., eq. 6).

    Args:
        q: The critic's values of the actor's actions, [B]; only the actor's parameters may follow the gradient.
    """
    assert_rank(1, q=q)
    return -q.mean()


def build_actor(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        return DeterministicActor(
            inputs,
            config.actor_sizes,
            env_spec.action_size,
            rng,
            activation=config.actor_activation,
            last_bound=LAST_BOUND,
        )

    return behind_torso(config, env_spec, rng, actor)


def build_critic(config: DDPGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations and actions to values [B, 1]."""

    def critic(inputs: int) -> nn.Module:
        return ActionCritic(
            inputs,
            env_spec.action_size,
            config.critic_sizes,
            1,
            rng,
            action_layer=config.action_layer,
            last_bound=LAST_BOUND,
        )

    return behind_torso(config, env_spec, rng, critic)


def values_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the critic's values of a batch's actions, [B]."""
    q: Tensor = critic(batch["observation"], batch["action"].flatten(1))
    return q.squeeze(-1)


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the targets for the values of a batch's actions, [B]."""
    next_observation = batch["bootstrap_observation"]
    bootstrap_q = critic(next_observation, actor(next_observation)).squeeze(-1)
    return td_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q)


class DDPGLearning:
    """Learning of actor and critic: both at each update, and their targets follow slowly."""

    def __init__(self, config: DDPGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._config = config
        self.networks = ActorCritic(actor, critic, config, critic_weight_decay=config.critic_weight_decay)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critic, then the actor, then move both targets."""
        networks = self.networks
        observation = batch["observation"]
        q = values_taken(networks.critic, batch)
        target = target_of(networks.target_actor, networks.target_critic, batch)
        result = td_loss(q, target, weight, huber=self._config.loss == "huber")
        networks.update_critic(result.loss)
        actor_q = networks.critic(observation, networks.actor(observation)).squeeze(-1)
        networks.update_actor(actor_loss(actor_q))
        networks.update_targets()
        metrics = {"loss": result.loss.detach(), "q": q.detach().mean(), "actor_q": actor_q.detach().mean()}
        return Update(result.td_error.abs(), metrics)


def build_agent(config: DDPGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side."""
    learning = DDPGLearning(config, env_spec, device, seed)
    return DeterministicAgent(learning.networks, learning.update, config, env_spec)


def build_policy(config: DDPGConfig, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side."""
    rng = torch.Generator().manual_seed(context.seed)
    actor = build_actor(config, env_spec, rng)
    critic = build_critic(config, env_spec, rng)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        return (target_of(actor, critic, batch) - values_taken(critic, batch)).abs()

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
