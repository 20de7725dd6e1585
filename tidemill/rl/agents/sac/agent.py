"""Soft actor-critic's learner side (Haarnoja et al. 2018, algorithm 1, without a value network)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.sac import loss
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.agents.sac.networks import build_actor, build_critic
from tidemill.rl.losses import twin_td_loss
from tidemill.rl.networks.precision import MatmulPrecision
from tidemill.rl.networks.squashed_gaussian import head_gradient, sample
from tidemill.rl.optimizers import Adam, LearningRateDecay, global_norm
from tidemill.rl.process_group import ProcessGroup, draw_normal
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.transitions import transitions
from tidemill.types import EnvSpec, WindowSpec

_PRIORITY_SHARE = 0.01
"""Of one update in the mean priority."""

_LARGEST_PRIORITY = 60_000.0
"""That float16 holds, as which actors get it."""


class SACAgent:
    """Actor, twin critics, their target and the temperature, with one optimizer each.

    Gradients are written out, see `tidemill.rl.networks.ensemble_mlp`: they are those of the functions in
    `loss.py`, which tests hold them against.
    """

    recurrent_state_size = 0

    def __init__(self, config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self.window = WindowSpec(history=env_spec.frame_stack - 1, steps=config.n_step)
        self._action_size = math.prod(env_spec.action_shape)
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        products = MatmulPrecision(config.update_precision, device, images=False).dtype
        for network in (self._actor, self._critic):
            network.set_compute_dtype(products)
        self._average = TargetNetwork(self._actor, every=0, tau=1.0 - config.actor_ema_decay)
        self._target = TargetNetwork(self._critic, every=0, tau=config.tau)
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self._target_entropy = -float(self._action_size) if config.target_entropy is None else config.target_entropy
        self._mean_priority = torch.ones((), device=device)  # of the newest updates
        self._actor_optimizer = Adam(self._actor.parameters(), config.learning_rate)
        self._critic_optimizer = Adam(self._critic.parameters(), config.learning_rate)
        self._temperature_optimizer = Adam([self._log_temperature], config.learning_rate)
        self._noise = torch.Generator(device).manual_seed(seed)
        networks = {"actor": self._actor, "critic": self._critic, "target": self._target.network}
        self._state = TrainState(
            networks | ({"average": self._average.network} if config.actor_ema_decay else {}),
            {
                "actor_optimizer": self._actor_optimizer,
                "critic_optimizer": self._critic_optimizer,
                "temperature_optimizer": self._temperature_optimizer,
            },
            self._noise,
        )
        self._decay = LearningRateDecay(
            self._state.optimizers.values(), config.learning_rate_decay_updates, config.learning_rate_final
        )

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        return transitions(columns, index, self._frame_stack, self._config.n_step, self._config.gamma)

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    @torch.no_grad()
    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update critics, then every `policy_delay` updates actor and temperature, then the target."""
        self._decay.at(self._state.updates)
        shape = (2, len(weight), self._action_size)
        noise = draw_normal(shape, self._state.group, self._noise, weight.device, dim=1)
        temperature = self._log_temperature.exp()
        observation = batch["observation"]
        target = self._critic_target(batch, noise[0], temperature)
        priority, metrics = self._update_critic(observation, batch["action"].flatten(1), target, weight)
        if self._state.updates % self._config.policy_delay == 0:
            metrics |= self._update_actor(observation, noise[1], temperature)
        self._move_averages()
        self._state.updates += 1
        return Update(priority, metrics | {"temperature": temperature})

    def _critic_target(self, batch: Mapping[str, Tensor], noise: Tensor, temperature: Tensor) -> Tensor:
        next_observation = batch["bootstrap_observation"]
        drawn = sample(self._actor(next_observation)[0], noise)
        bootstrap_q = self._target.network(next_observation, drawn.action).squeeze(-1)
        return loss.soft_q_target(
            batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q, drawn.log_prob, temperature
        )

    def _update_critic(
        self, observation: Tensor, action: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        activations = self._critic.activations(observation, action)
        q = activations[-1].output.squeeze(-1)
        gradient, td_error = loss.critic_gradient(q, target, weight, self._config.huber_delta)
        gradients = self._critic.parameter_gradients(activations, gradient.unsqueeze(-1))
        mean_error = td_error.mean()
        *gradients, mean_priority = self._state.group.mean([*gradients, mean_error])
        self._critic_optimizer.step(gradients)
        self._mean_priority.lerp_(mean_priority, _PRIORITY_SHARE)
        metrics = {"td_error": mean_error, "q": q.mean()}
        if self._state.is_measured:
            metrics["loss"] = twin_td_loss(q, target, weight, self._config.huber_delta).loss
            metrics["critic_grad_norm"] = global_norm(gradients)
        return td_error, metrics

    def _update_actor(self, observation: Tensor, noise: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        actor_activations = self._actor.activations(observation)
        drawn = sample(actor_activations[-1].output[0], noise)
        critic_activations = self._critic.activations(observation, drawn.action)
        q_gradient = loss.actor_gradient(critic_activations[-1].output.squeeze(-1))
        actions = drawn.action.shape[1]
        action_gradient = self._critic.input_gradient(critic_activations, q_gradient.unsqueeze(-1), last=actions).sum(
            dim=0
        )
        gradient = head_gradient(drawn, action_gradient, temperature / len(observation))
        entropy = -drawn.log_prob.mean()
        parameters = self._actor.parameter_gradients(actor_activations, gradient.unsqueeze(0))
        *gradients, surplus = self._state.group.mean([*parameters, entropy - self._target_entropy])
        self._actor_optimizer.step(gradients)
        if self._config.temperature == "learned":
            self._temperature_optimizer.step([surplus])
        metrics = {"entropy": entropy}
        if self._state.is_measured:
            metrics["actor_grad_norm"] = global_norm(gradients)
        return metrics

    def _move_averages(self) -> None:
        self._target.update(self._critic_optimizer.parameters, self._state.updates)
        if self._config.actor_ema_decay:
            self._average.update(self._actor_optimizer.parameters, self._state.updates)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and of its average's if any, `average.*`.

        With them goes `initial_priority`, what an item is worth before its first update: the critics that would know
        are not sent.
        """
        networks = self._state.copy_of("actor", *(("average",) if self._config.actor_ema_decay else ()))
        return networks | {"initial_priority": self._mean_priority.clamp(max=_LARGEST_PRIORITY)}

    def state_dict(self) -> State:
        """Return networks, optimizers, temperature, noise generator and counter."""
        return self._state.state_dict() | {
            "log_temperature": self._log_temperature,
            "mean_priority": self._mean_priority,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)
        self._log_temperature.copy_(state["log_temperature"])
        if "mean_priority" in state:  # older checkpoints have none
            self._mean_priority.copy_(state["mean_priority"])


def build(config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> SACAgent:
    """Return the learner's side of SAC; `tidemill.rl.agents.registry` calls this."""
    return SACAgent(config, env_spec, device, seed)
