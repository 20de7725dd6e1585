"""TD3: twin critics, a delayed actor and smoothed targets (Fujimoto et al. 2018, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tidemill.rl.agents.deterministic import ActorCritic, DeterministicAgent, DeterministicPolicy
from tidemill.rl.agents.interface import PolicyContext, Update
from tidemill.rl.agents.items import Transitions, items_of
from tidemill.rl.losses import assert_rank, twin_td_loss
from tidemill.rl.mean_priority import MeanPriority
from tidemill.rl.networks.deterministic import DeterministicActor, behind_torso
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP
from tidemill.rl.networks.recurrent import Seen
from tidemill.rl.process_group import draw_normal
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.types import EnvSpec


def smoothed_action(action: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Return clip(action + clip(noise, -limit, limit), -1, 1), [B, A] (ibid., section 5.3)."""
    assert_rank(2, action=action, noise=noise)
    return (action + noise.clamp(-limit, limit)).clamp(-1.0, 1.0)


def clipped_double_q_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor) -> Tensor:
    """Return R + discount * min of both Q'(s', a'), [B], without a gradient (ibid., eq. 10).

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: Both target critics' values of the smoothed action, [2, B].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(2, bootstrap_q=bootstrap_q)
    smaller = torch.minimum(bootstrap_q[0], bootstrap_q[1])
    return (n_step_return + bootstrap_discount * smaller).detach()


def actor_loss(q: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return -mean Q1(s, mu(s)), []: the first critic alone leads the actor (ibid., algorithm 1).

    Args:
        q: Both critics' values of the actor's actions, [2, B]; only the actor's parameters may follow the gradient.
        counts: 1 where a transition counts and 0 elsewhere, [B]; None: all do.
    """
    assert_rank(2, q=q)
    return -(q[0] if counts is None else q[0] * counts).mean()


def build_actor(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return the network from observations [B, ...] to actions [B, A]."""

    def actor(inputs: int) -> nn.Module:
        return DeterministicActor(inputs, config.hidden_sizes, env_spec.action_size, rng)

    return behind_torso(config, env_spec, rng, actor, config.lstm_size)


def build_critic(config: TD3Config, env_spec: EnvSpec, rng: torch.Generator) -> nn.Module:
    """Return two networks, behind one torso, from observations [B, ...] and actions [B, A] to values [2, B, 1]."""

    def critics(inputs: int) -> nn.Module:
        return EnsembleMLP(2, inputs + env_spec.action_size, config.hidden_sizes, 1, rng)

    return behind_torso(config, env_spec, rng, critics, config.lstm_size, starts_empty=True)


def values(critic: nn.Module, observation: Seen, action: Tensor) -> Tensor:
    """Return both critics' values, [2, B]."""
    q: Tensor = critic(observation, action)
    return q.squeeze(-1)


@torch.no_grad()
def target_of(critic: nn.Module, action: Tensor, learned: Transitions) -> Tensor:
    """Return the target values of transitions, [B], if `action` is taken in the states they lead to."""
    bootstrap_q = values(critic, learned.bootstrap_observation, action)
    return clipped_double_q_target(learned.n_step_return, learned.bootstrap_discount, bootstrap_q)


class TD3Learning:
    """Learning of actor and twin critics: the critics at each update, the actor and all targets less often."""

    def __init__(self, config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        actor = build_actor(config, env_spec, rng).to(device)
        critic = build_critic(config, env_spec, rng).to(device)
        self._config = config
        self.items = items_of(config, env_spec.frame_stack)
        self._noise = torch.Generator(device).manual_seed(seed)
        self.networks = ActorCritic(
            actor,
            critic,
            config,
            noise=self._noise,
            mean_priority=MeanPriority(device) if config.lstm_size else None,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critics, then every `policy_delay` updates the actor and all targets."""
        learned = self.items.transitions(batch, weight)
        observation = learned.observation
        q = values(self.networks.critic, observation, learned.action)
        result = twin_td_loss(q, self._target(learned), learned.weight, self._config.huber_delta)
        priority = self.items.priority(result.td_error, batch)
        self.networks.update_critic(result.loss, priority)
        metrics = {"loss": result.loss.detach(), "q": q.detach().mean()}
        if self.networks.state.updates % self._config.policy_delay == 0:
            q_of_actor = values(self.networks.critic, observation, self.networks.actor(observation))
            loss = actor_loss(q_of_actor, learned.counts)
            self.networks.update_actor(loss)
            self.networks.update_targets()
            metrics["actor_q"] = -loss.detach()
        return Update(priority, metrics)

    @torch.no_grad()
    def _target(self, learned: Transitions) -> Tensor:
        action = self.networks.target_actor(learned.bootstrap_observation)
        drawn = draw_normal(action.shape, self.networks.state.group, self._noise, action.device)
        action = smoothed_action(action, drawn * self._config.target_noise, self._config.noise_clip)
        return target_of(self.networks.target_critic, action, learned)


def build_agent(config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> DeterministicAgent:
    """Return the learner's side."""
    learning = TD3Learning(config, env_spec, device, seed)
    return DeterministicAgent(
        learning.networks,
        learning.update,
        config,
        env_spec,
        policy_delay=config.policy_delay,
        items=learning.items,
        recurrent_state_size=config.recurrent_state_size,
    )


def build_policy(config: TD3Config, env_spec: EnvSpec, context: PolicyContext) -> DeterministicPolicy:
    """Return the acting side."""
    rng = torch.Generator().manual_seed(context.seed)
    actor = build_actor(config, env_spec, rng)
    if config.lstm_size:
        state_size = config.recurrent_state_size
        return DeterministicPolicy(actor, None, None, config, env_spec.action_shape, context, state_size)
    critic = build_critic(config, env_spec, rng)
    items = items_of(config, env_spec.frame_stack)

    def td_error_fn(batch: Mapping[str, Tensor]) -> Tensor:
        """Return both critics' mean absolute TD error, [B], without the noise that smooths the learner's target."""
        learned = items.transitions(batch, torch.ones_like(batch["n_step_return"]))
        q = values(critic, learned.observation, learned.action)
        target = target_of(critic, actor(learned.bootstrap_observation), learned)
        return (target - q).abs().mean(dim=0)

    return DeterministicPolicy(actor, critic, td_error_fn, config, env_spec.action_shape, context)
