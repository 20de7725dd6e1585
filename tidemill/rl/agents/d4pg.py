"""D4PG: DDPG with a critic that predicts the distribution of returns (Barth-Maron et al. 2018, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tidemill.rl.agents.deterministic import ActorCritic, DeterministicAgent, DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext, Update
from tidemill.rl.losses import assert_rank
from tidemill.rl.losses.categorical import atoms, categorical_target, cross_entropy, divergence, expectation
from tidemill.rl.networks.deterministic import ActionCritic, DeterministicActor, behind_torso
from tidemill.rl.settings.deterministic import D4PGConfig
from tidemill.types import EnvSpec

ACTOR_LAST_BOUND = 3e-3
"""Bound on the actor's last layer's first parameters, as in DDPG (Lillicrap et al. 2016, section 7)."""


class CriticLoss(NamedTuple):
    """The critic's loss over a batch and what it learned about each item.

    Attributes:
        loss: Weighted mean over the batch, float32 [].
        divergence: Of each item's prediction from its target, without a gradient, never negative, float32 [B].
    """

    loss: Tensor
    divergence: Tensor


def critic_loss(logits: Tensor, target: Tensor, weight: Tensor) -> CriticLoss:
    """Return the weighted mean of the cross entropy (ibid., algorithm 1).

    Args:
        logits: Of the predicted distributions, [B, K].
        target: The projected target distributions, [B, K].
        weight: Importance weights, [B].
    """
    assert_rank(2, logits=logits, target=target)
    assert_rank(1, weight=weight)
    return CriticLoss((weight * cross_entropy(logits, target)).mean(), divergence(logits, target))


def actor_loss(logits: Tensor, support: Tensor) -> Tensor:
    """Return minus the mean expected return, [] (ibid., eq. 4).

    Args:
        logits: The critic's distributions of the actor's actions, [B, K]; only the actor's parameters may follow
            the gradient.
        support: The atoms, [K].
    """
    assert_rank(2, logits=logits)
    return -expectation(logits, support).mean()


def build_actor(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        return DeterministicActor(inputs, config.actor_sizes, env_spec.action_size, rng, last_bound=ACTOR_LAST_BOUND)

    return behind_torso(config, env_spec, rng, actor)


def build_critic(config: D4PGConfig, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations and actions to logits of the return's distribution, [B, num_atoms]."""

    def critic(inputs: int) -> nn.Module:
        return ActionCritic(
            inputs,
            env_spec.action_size,
            config.critic_sizes,
            config.num_atoms,
            rng,
            action_layer=config.action_layer,
        )

    return behind_torso(config, env_spec, rng, critic)


def logits_taken(critic: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the critic's distributions of a batch's actions, [B, num_atoms]."""
    logits: Tensor = critic(batch["observation"], batch["action"].flatten(1))
    return logits


@torch.no_grad()
def target_of(actor: nn.Module, critic: nn.Module, batch: Mapping[str, Tensor], support: Tensor) -> Tensor:
    """Return the targets for the distributions of a batch's actions, [B, num_atoms]."""
    next_observation = batch["bootstrap_observation"]
    probabilities = critic(next_observation, actor(next_observation)).softmax(dim=-1)
    return categorical_target(batch["n_step_return"], batch["bootstrap_discount"], probabilities, support)


class D4PGLearning:
    """Learning of an actor and a critic that predicts distributions of returns."""

    def __init__(self, config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._support = atoms(config.value_min, config.value_max, config.num_atoms, device)
        self.networks = ActorCritic(actor, critic, config, target_update_period=config.target_update_period)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critic, then the actor, and move the targets if it is time.

        New priorities are how far each prediction is from its target, a divergence in nats.
        """
        networks = self.networks
        observation = batch["observation"]
        logits = logits_taken(networks.critic, batch)
        target = target_of(networks.target_actor, networks.target_critic, batch, self._support)
        result = critic_loss(logits, target, weight)
        networks.update_critic(result.loss)
        loss = actor_loss(networks.critic(observation, networks.actor(observation)), self._support)
        networks.update_actor(loss)
        networks.update_targets()
        q = expectation(logits.detach(), self._support).mean()
        return Update(result.divergence, {"loss": result.loss.detach(), "q": q, "actor_q": -loss.detach()})


def build_agent(config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side."""
    learning = D4PGLearning(config, env_spec, device, seed)
    return DeterministicAgent(learning.networks, learning.update, config, env_spec)


def build_policy(config: D4PGConfig, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side."""
    rng = torch.Generator().manual_seed(context.seed)
    actor = build_actor(config, env_spec, rng)
    critic = build_critic(config, env_spec, rng)
    support = atoms(config.value_min, config.value_max, config.num_atoms, context.device)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        return divergence(logits_taken(critic, batch), target_of(actor, critic, batch, support))

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
