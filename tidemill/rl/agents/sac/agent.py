"""Soft actor-critic's learner side (Haarnoja et al. 2018, algorithm 1, without a value network), TQC and CrossQ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.sac.loss import build_value_head
from tidemill.rl.agents.sac.networks import build_actor, build_critic
from tidemill.rl.mean_priority import MeanPriority
from tidemill.rl.networks.batch_renorm import BATCH_NORM, RENORM, RenormBounds
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP, LayerActivations
from tidemill.rl.networks.precision import MatmulPrecision
from tidemill.rl.networks.squashed_gaussian import head_gradient, sample
from tidemill.rl.optimizers import Adam, LearningRateDecay, global_norm
from tidemill.rl.process_group import ProcessGroup, draw_normal
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.transitions import transitions
from tidemill.rl.update_graph import recorded
from tidemill.types import EnvSpec, WindowSpec


class SACAgent:
    """Actor, critics, their target unless it is CrossQ, and the temperature, with one optimizer each.

    Gradients are written out, see `tidemill.rl.networks.ensemble_mlp`: they are those of the functions in
    `loss.py`, which tests hold them against.
    """

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

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
        self._target = None if config.crossq else TargetNetwork(self._critic, every=0, tau=config.tau)
        self._head = build_value_head(config)
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self._target_entropy = -float(self._action_size) if config.target_entropy is None else config.target_entropy
        self._mean_priority = MeanPriority(device)
        rate, betas = config.learning_rate, (config.adam_beta1, 0.999)
        self._actor_optimizer = Adam(self._actor.parameters(), rate, betas)
        self._critic_optimizer = Adam(self._critic.parameters(), rate, betas)
        self._temperature_optimizer = Adam([self._log_temperature], rate, betas)
        self._noise = torch.Generator(device).manual_seed(seed)
        networks: dict[str, nn.Module] = {"actor": self._actor, "critic": self._critic}
        if self._target is not None:
            networks["target"] = self._target.network
        if config.actor_ema_decay:
            networks["average"] = self._average.network
        self._state = TrainState(
            networks,
            {
                "actor_optimizer": self._actor_optimizer,
                "critic_optimizer": self._critic_optimizer,
                "temperature_optimizer": self._temperature_optimizer,
            },
            self._noise,
        )
        decay, recording = (config.learning_rate_decay_updates, config.learning_rate_final), config.compile != "none"
        self._decay = LearningRateDecay(self._state.optimizers.values(), *decay, on_device=recording)
        self._run_update = recorded(self._updated, config.compile, device, self._state)

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
        kind = self._updates_actor, self._renorm_bounds, self._state.is_measured
        update = self._run_update(batch, weight, kind)
        self._state.updates += 1
        return update

    @property
    def _updates_actor(self) -> bool:
        return self._state.updates % self._config.policy_delay == 0

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        shape = (2, len(weight), self._action_size)
        noise = draw_normal(shape, self._state.group, self._noise, weight.device, dim=1)
        temperature = self._log_temperature.exp()
        priority, metrics = self._update_critic(batch, weight, noise[0], temperature)
        if self._updates_actor:
            metrics |= self._update_actor(batch["observation"], noise[1], temperature)
        self._move_averages()
        return Update(priority, metrics | {"temperature": temperature})

    def _update_critic(
        self, batch: Mapping[str, Tensor], weight: Tensor, noise: Tensor, temperature: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        drawn = sample(self._actor(batch["bootstrap_observation"])[0], noise)
        activations, bootstrap = self._criticise(batch, drawn.action)
        output = activations[-1].output[:, : len(weight)]
        target = self._head.target(
            batch["n_step_return"], batch["bootstrap_discount"], bootstrap, drawn.log_prob, temperature
        )
        gradient, td_error = self._head.gradient(output, target, weight)
        if self._target is None:  # no gradient at the second half, where targets come from
            gradient = functional.pad(gradient, (0, 0, 0, len(weight)))
        mean_error = td_error.mean()
        gradients = self._step(self._critic, self._critic_optimizer, activations, gradient, mean_error)
        self._mean_priority.update(gradients.pop())
        metrics = {"td_error": mean_error, "q": output.mean()}
        if self._state.is_measured:
            metrics["loss"] = self._head.loss(output, target, weight)
            metrics["critic_grad_norm"] = global_norm(gradients)
        return td_error, metrics

    def _criticise(self, batch: Mapping[str, Tensor], next_action: Tensor) -> tuple[list[LayerActivations], Tensor]:
        """Return what the critics did with each transition's start, and the values of its end, [C, B, K].

        With CrossQ they see both ends in one pass, [C, 2 B, K], whose second half are the values of the end.
        """
        observation, action = batch["observation"], batch["action"].flatten(1)
        next_observation = batch["bootstrap_observation"]
        if self._target is not None:
            return self._critic.activations(observation, action), self._target.network(next_observation, next_action)
        both = torch.cat((observation, next_observation)), torch.cat((action, next_action))
        activations = self._critic.activations(*both, self._renorm_bounds)
        return activations, activations[-1].output[:, len(action) :]

    @property
    def _renorm_bounds(self) -> RenormBounds | None:
        """How the networks that learn in this update normalise, if they do."""
        if not self._config.crossq:
            return None
        return BATCH_NORM if self._state.updates < self._config.crossq_warmup_updates else RENORM

    def _step(
        self,
        network: EnsembleMLP,
        optimizer: Adam,
        activations: list[LayerActivations],
        gradient: Tensor,
        also: Tensor,
    ) -> list[Tensor]:
        """Step down the gradient of a network's output; return those of its parameters, and `also`, of all ranks.

        Each rank renormalises by its own part of a batch; the running statistics follow the mean over ranks.
        """
        parameters = network.parameter_gradients(activations, gradient)
        statistics = network.batch_statistics(activations)
        averaged = self._state.group.mean([*parameters, *statistics, also])
        gradients = averaged[: len(parameters)]
        optimizer.step(gradients)
        network.track(averaged[len(parameters) : -1])
        return [*gradients, averaged[-1]]

    def _update_actor(self, observation: Tensor, noise: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        activations = self._actor.activations(observation, bounds=self._renorm_bounds)
        drawn = sample(activations[-1].output[0], noise)
        critic_activations = self._critic.activations(observation, drawn.action)
        q_gradient = self._head.actor_gradient(critic_activations[-1].output)
        actions = drawn.action.shape[1]
        action_gradient = self._critic.input_gradient(critic_activations, q_gradient, last=actions).sum(dim=0)
        gradient = head_gradient(drawn, action_gradient, temperature / len(observation)).unsqueeze(0)
        entropy = -drawn.log_prob.mean()
        surplus = entropy - self._target_entropy
        gradients = self._step(self._actor, self._actor_optimizer, activations, gradient, surplus)
        surplus = gradients.pop()
        if self._config.temperature == "learned":
            self._temperature_optimizer.step([surplus])
        metrics = {"entropy": entropy}
        if self._state.is_measured:
            metrics["actor_grad_norm"] = global_norm(gradients)
        return metrics

    def _move_averages(self) -> None:
        if self._target is not None:
            self._target.update(self._critic_optimizer.parameters, self._state.updates)
        if self._config.actor_ema_decay:
            self._average.update(self._actor_optimizer.parameters, self._state.updates)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and of its average's if any, `average.*`.

        With them goes `initial_priority`, what an item is worth before its first update: the critics that would know
        are not sent.
        """
        networks = self._state.copy_of("actor", *(("average",) if self._config.actor_ema_decay else ()))
        return networks | self._mean_priority.published()

    def state_dict(self) -> State:
        """Return networks, optimizers, temperature, noise generator and counter."""
        own = {"log_temperature": self._log_temperature} | self._mean_priority.state_dict()
        return self._state.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)
        self._log_temperature.copy_(state["log_temperature"])
        self._mean_priority.load_state_dict(state)


def build(config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> SACAgent:
    """Return the learner's side of SAC; `tidemill.rl.agents.registry` calls this."""
    return SACAgent(config, env_spec, device, seed)
