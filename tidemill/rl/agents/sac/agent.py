"""Soft actor-critic's learner side (Haarnoja et al. 2018, algorithm 1, without a value network)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl import losses
from tidemill.rl.adam import Adam
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.exploration import linear
from tidemill.rl.networks.squashed_gaussian import ActorNetwork, sample
from tidemill.rl.networks.twin_critic import TwinCritic
from tidemill.rl.windows import transitions
from tidemill.types import EnvSpec, Signature


class SACAgent:
    """Actor, twin critics, their target and the temperature, with one optimizer each."""

    def __init__(self, config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        rng = torch.Generator().manual_seed(seed)
        observations = math.prod(env_spec.observation_shape) * env_spec.frame_stack
        self._action_size = math.prod(env_spec.action_shape)
        critic_inputs = observations + self._action_size
        self._actor = ActorNetwork(observations, self._action_size, config.hidden_sizes, rng).to(device)
        self._average = ActorNetwork(observations, self._action_size, config.hidden_sizes, rng).to(device)
        self._average.requires_grad_(False)
        self._average.load_state_dict(self._actor.state_dict())
        self._critic = TwinCritic(critic_inputs, config.hidden_sizes, config.critic_layer_norm, rng).to(device)
        self._target = TwinCritic(critic_inputs, config.hidden_sizes, config.critic_layer_norm, rng).to(device)
        self._target.requires_grad_(False)
        self._target.load_state_dict(self._critic.state_dict())
        start = torch.tensor(math.log(config.initial_temperature), device=device)
        self._log_temperature = start.requires_grad_(config.temperature == "learned")
        self._target_entropy = -float(self._action_size) if config.target_entropy is None else config.target_entropy
        self._actor_optimizer = Adam(self._actor.parameters(), config.learning_rate)
        self._critic_optimizer = Adam(self._critic.parameters(), config.learning_rate)
        self._temperature_optimizer = Adam([self._log_temperature], config.learning_rate)
        # listed once: walking a module's tree costs more than the copies themselves
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._average_parameters: list[Tensor] = list(self._average.parameters())
        self._noise = torch.Generator(device).manual_seed(seed)
        self._updates = 0

    def extra_columns(self) -> Signature:
        """Return (): first priorities are 1."""
        return ()

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.windows.transitions`."""
        return transitions(columns, index, self._frame_stack, self._config.n_step, self._config.gamma)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update critics, then every `actor_every` updates actor and temperature, then the target."""
        self._set_learning_rate()
        noise = torch.randn((2, len(weight), self._action_size), generator=self._noise, device=weight.device)
        temperature = self._log_temperature.detach().exp()
        critic = self._update_critic(batch, weight, noise[0], temperature)
        metrics = {"critic_loss": critic.loss.detach(), "temperature": temperature}
        if self._updates % self._config.actor_every == 0:
            metrics |= self._update_actor(batch["observation"], noise[1], temperature)
        self._move_averages()
        self._updates += 1
        return Update(critic.td_error, metrics)

    def _update_critic(
        self, batch: Mapping[str, Tensor], weight: Tensor, noise: Tensor, temperature: Tensor
    ) -> losses.TDLoss:
        with torch.no_grad():
            following = batch["bootstrap_observation"]
            action, log_prob = sample(self._actor(following), noise)
            bootstrap_q = self._target(following, action)
            target = losses.soft_q_target(
                batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q, log_prob, temperature
            )
        q = self._critic(batch["observation"], batch["action"])
        critic = losses.sac_critic_loss(q, target, weight)
        self._critic_optimizer.minimize(critic.loss)
        return critic

    def _update_actor(self, observation: Tensor, noise: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        action, log_prob = sample(self._actor(observation), noise)
        q = self._critic(observation, action, frozen=True)
        loss = losses.sac_actor_loss(q, log_prob, temperature)
        self._actor_optimizer.minimize(loss)
        if self._config.temperature == "learned":
            self._temperature_optimizer.minimize(
                losses.temperature_loss(self._log_temperature, log_prob, self._target_entropy)
            )
        return {"actor_loss": loss.detach(), "entropy": -log_prob.detach().mean(), "q": q.detach().mean()}

    def _move_averages(self) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(self._target_parameters, self._critic_optimizer.parameters, self._config.tau)
            if self._config.policy_average:
                rate = 1.0 - self._config.policy_average
                torch._foreach_lerp_(self._average_parameters, self._actor_optimizer.parameters, rate)

    def _set_learning_rate(self) -> None:
        duration = self._config.learning_rate_decay_updates
        if duration:
            rate = linear(self._updates, self._config.learning_rate, self._config.learning_rate_final, duration)
            for optimizer in self._optimizers().values():
                optimizer.learning_rate = rate

    def _optimizers(self) -> dict[str, Adam]:
        return {
            "actor_optimizer": self._actor_optimizer,
            "critic_optimizer": self._critic_optimizer,
            "temperature_optimizer": self._temperature_optimizer,
        }

    def _networks(self) -> dict[str, torch.nn.Module]:
        networks = {"actor": self._actor, "critic": self._critic, "target": self._target}
        return networks | ({"average": self._average} if self._config.policy_average else {})

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and of its average's if any, `average.*`."""
        networks = {name: net for name, net in self._networks().items() if name in ("actor", "average")}
        return {
            f"{name}.{key}": value.detach().clone()
            for name, network in networks.items()
            for key, value in network.state_dict().items()
        }

    def state_dict(self) -> State:
        """Return networks, optimizers, temperature, noise generator and counter."""
        state: State = {name: dict(network.state_dict()) for name, network in self._networks().items()}
        state |= {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()}
        return state | {
            "log_temperature": self._log_temperature.detach(),
            "noise": self._noise.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        for name, network in self._networks().items():
            network.load_state_dict(state[name])
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state[name])
        with torch.no_grad():
            self._log_temperature.copy_(state["log_temperature"])
        self._noise.set_state(state["noise"].cpu())
        self._updates = int(state["updates"])
