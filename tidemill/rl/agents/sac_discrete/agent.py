"""Discrete soft actor-critic's learner side (Christodoulou 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.sac_discrete import loss
from tidemill.rl.agents.sac_discrete.networks import build_actor, build_critic
from tidemill.rl.losses import twin_td_loss
from tidemill.rl.mean_priority import MeanPriority
from tidemill.rl.optimizers import Adam, LearningRateDecay, clip_
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.settings.soft_actor_critic import SACDiscreteConfig
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.transitions import transitions
from tidemill.rl.update_graph import recorded
from tidemill.types import ACTION_MASK, EnvSpec


class SACDiscreteAgent:
    """Actor, twin critics, their target and the temperature, with one optimizer each; an update draws nothing."""

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._frame_stack = config, env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        self._target = TargetNetwork(self._critic, config.target_update_period, config.tau)
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self._mean_priority = MeanPriority(device)
        rate, epsilon = config.learning_rate, config.optimizer_epsilon
        self._actor_optimizer = Adam(self._actor.parameters(), rate, epsilon=epsilon)
        self._critic_optimizer = Adam(self._critic.parameters(), rate, epsilon=epsilon)
        self._temperature_optimizer = Adam([self._log_temperature], rate, epsilon=epsilon)
        self._state = TrainState(
            {"actor": self._actor, "critic": self._critic, "target": self._target.network},
            {
                "actor_optimizer": self._actor_optimizer,
                "critic_optimizer": self._critic_optimizer,
                "temperature_optimizer": self._temperature_optimizer,
            },
        )
        recording = config.compile == "cuda-graphs"
        optimizers = self._state.optimizers.values()
        self._decay = LearningRateDecay(optimizers, config.learning_rate_decay_updates, on_device=recording)
        self._run_update = recorded(self._updated, config.compile, device, self._state)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        stack, steps, gamma, masks = self._frame_stack, self._config.n_step, self._config.gamma, self._masks
        return transitions(columns, index, stack, steps, gamma, extras=masks, bootstrap_extras=masks)

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update critics, actor and temperature, then the target."""
        self._decay.at(self._state.updates)
        update = self._run_update(batch, weight, self._target.is_due(self._state.updates + 1))
        self._state.updates += 1
        return update

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        temperature = self._log_temperature.exp()
        q, priority, metrics = self._update_critic(batch, weight, temperature)
        metrics |= self._update_actor(batch, q, temperature)
        self._target.update(self._critic_optimizer.parameters, self._state.updates + 1)
        return Update(priority, metrics | {"temperature": temperature})

    def _update_critic(
        self, batch: Mapping[str, Tensor], weight: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the values of every action before the step, [2, B, A], the items' priorities, [B], and metrics."""
        with torch.no_grad():
            following = batch["bootstrap_observation"]
            log_prob = loss.log_policy(self._actor(following)[0], batch.get(f"bootstrap_{ACTION_MASK}"))
            bootstrap_q = self._target.network(following)
            target = loss.soft_target(
                batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q, log_prob, temperature
            )
        q = self._critic(batch["observation"])
        chosen = q.gather(2, batch["action"].expand(2, -1).unsqueeze(2)).squeeze(2)
        td = twin_td_loss(chosen, target, weight)
        grad_norm, mean_priority = self._step(self._critic_optimizer, td.loss, td.td_error.mean())
        self._mean_priority.update(mean_priority)
        metrics = {"loss": td.loss.detach(), "q": chosen.detach().mean(), "critic_grad_norm": grad_norm}
        return q.detach(), td.td_error, metrics

    def _update_actor(self, batch: Mapping[str, Tensor], q: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        legal = batch.get(ACTION_MASK)
        log_prob = loss.log_policy(self._actor(batch["observation"])[0], legal)
        entropy = loss.entropy(log_prob.detach())
        count = torch.full_like(entropy, q.shape[2]) if legal is None else legal.sum(dim=1).to(entropy.dtype)
        surplus = (entropy - self._config.target_entropy_share * count.log()).mean()
        actor_loss = loss.actor_loss(q, log_prob, temperature)
        grad_norm, surplus = self._step(self._actor_optimizer, actor_loss, surplus)
        if self._config.temperature == "learned":
            self._temperature_optimizer.step([surplus])
        return {"entropy": entropy.mean(), "actor_loss": actor_loss.detach(), "actor_grad_norm": grad_norm}

    def _step(self, optimizer: Adam, of: Tensor, also: Tensor) -> tuple[Tensor, Tensor]:
        """Step down the gradient of a loss; return its norm before it was clipped, and the ranks' mean of `also`."""
        gradients = torch.autograd.grad(of, optimizer.parameters)
        *averaged, also = self._state.group.mean([*gradients, also])
        norm = clip_(averaged, self._config.max_grad_norm)
        optimizer.step(averaged)
        return norm, also

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and what an item is worth before its first update."""
        return self._state.copy_of("actor") | self._mean_priority.published()

    def state_dict(self) -> State:
        """Return networks, optimizers, temperature and counter."""
        own = {"log_temperature": self._log_temperature} | self._mean_priority.state_dict()
        return self._state.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)
        self._log_temperature.copy_(state["log_temperature"])
        self._mean_priority.load_state_dict(state)


def build(config: SACDiscreteConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> SACDiscreteAgent:
    """Return the learner's side of discrete SAC; `tidemill.rl.agents.build` calls this."""
    return SACDiscreteAgent(config, env_spec, device, seed)
