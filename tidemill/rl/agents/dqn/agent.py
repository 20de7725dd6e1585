"""DQN's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.loss import QuantileHead, build_value_head, gather_action, gather_argmax, munchausen_bonus
from tidemill.rl.agents.dqn.networks import build_network
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.compilation import compiled
from tidemill.rl.losses import mask_illegal, soft_value
from tidemill.rl.networks.image import to_channels_last
from tidemill.rl.networks.noisy import disable_noise, reset_noise
from tidemill.rl.networks.precision import MatmulPrecision
from tidemill.rl.optimizers import LearningRateDecay, build_optimizer, clip_
from tidemill.rl.process_group import ProcessGroup, draw_uniform
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.transitions import gather_frame_stacks, transitions
from tidemill.rl.update_graph import recorded
from tidemill.types import ACTION_MASK, EnvSpec


class DQNAgent:
    """A Q-network, its target and one optimizer."""

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self._stack_on_device = device.type == "cuda" and env_spec.frame_stack > 1
        self.window = config.window(env_spec.frame_stack)
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
        self._value_head = build_value_head(config, device)
        self._online = build_network(config, env_spec, seed).to(device)
        is_image = env_spec.is_image
        self._online.matmul_precision = MatmulPrecision(config.update_precision, device, images=is_image)
        if config.channels_last:
            to_channels_last(self._online)
        self._target = TargetNetwork(self._online, config.target_update_period, config.tau)
        self._optimizer = build_optimizer(config, self._online.parameters())
        recording = config.compile == "cuda-graphs"
        self._decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates, on_device=recording)
        self._loss = compiled(self._loss_of, config.compile, device)
        self._noise = torch.Generator(device).manual_seed(seed)
        self._state = TrainState(
            {"online": self._online, "target": self._target.network}, {"optimizer": self._optimizer}, self._noise
        )
        self._run_update = recorded(self._updated, config.compile, device, self._state)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        stack, steps, gamma = self._frame_stack, self._config.n_step, self._config.gamma
        masks = self._masks
        return transitions(
            columns,
            index,
            stack,
            steps,
            gamma,
            stack_on_device=self._stack_on_device,
            extras=masks if self._config.munchausen_scale else (),
            bootstrap_extras=masks,
        )

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the loss of the values and move the target network if it is time."""
        self._decay.at(self._state.updates)
        update = self._run_update(gather_frame_stacks(batch), weight, self._target.is_due(self._state.updates + 1))
        self._state.updates += 1
        return update

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        loss, priority, q = self._loss(batch, weight)
        gradients = self._state.group.mean(torch.autograd.grad(loss, self._optimizer.parameters))
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        self._target.update(self._optimizer.parameters, self._state.updates + 1)
        return Update(priority, {"loss": loss.detach(), "q": q, "grad_norm": grad_norm})

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the items' new priorities, [B], and the mean value of the actions taken, []."""
        bootstrap_q = self.bootstrap_values(batch["bootstrap_observation"], batch.get(f"bootstrap_{ACTION_MASK}"))
        n_step_return = batch["n_step_return"]
        if self._config.munchausen_scale:
            n_step_return = n_step_return + self._log_policy_bonus(batch)
        self._reset_noise(self._online, noisy=True)
        level = self._drawn_levels(len(n_step_return))
        chosen_q = gather_action(self._online(batch["observation"], level), batch["action"])
        head = self._value_head if level is None else QuantileHead(level)
        item = head.loss(chosen_q, n_step_return, batch["bootstrap_discount"], bootstrap_q)
        return (weight * item.loss).mean(), item.priority, self._value_head.mean(chosen_q.detach()).mean()

    @torch.no_grad()
    def bootstrap_values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return the target network's numbers for the legal action chosen at the bootstrap observation, [B, K].

        With Munchausen nothing is chosen: they are the soft policy's.
        """
        noisy = self._config.noisy_target
        self._reset_noise(self._target.network, noisy=noisy)
        output: Tensor = self._target.network(observation, self._drawn_levels(len(observation)))
        if self._config.munchausen_scale:
            q = mask_illegal(self._value_head.mean(output), legal)
            return soft_value(output, q, self._config.munchausen_temperature)
        chooser = output
        if self._config.double:
            self._reset_noise(self._online, noisy=noisy)  # apart from that of the prediction
            chooser = self._online(observation)
        return gather_argmax(output, self._value_head.mean(chooser), legal)

    @torch.no_grad()
    def _log_policy_bonus(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return what Munchausen adds to the first reward, [B], by the target network with the noise it just had."""
        q = mask_illegal(self._value_head.mean(self._target.network(batch["observation"])), batch.get(ACTION_MASK))
        return munchausen_bonus(self._config, q, batch["action"])

    def _drawn_levels(self, count: int) -> Tensor | None:
        """Return the levels whose quantiles a pass of `count` items predicts, [B, K]; None but for `iqn`."""
        if self._config.distribution != "iqn":
            return None
        return draw_uniform((count, self._config.atoms), self._state.group, self._noise, self._noise.device)

    def _reset_noise(self, network: torch.nn.Module, *, noisy: bool) -> None:
        if self._config.noisy and noisy:
            reset_noise(network, self._noise)
        elif self._config.noisy:
            disable_noise(network)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the Q-network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer, noise generator and counter."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)


def build(config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DQNAgent:
    """Return the learner's side of DQN; `tidemill.rl.agents.registry` calls this."""
    return DQNAgent(config, env_spec, device, seed)
