"""DQN's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.dqn.loss import build_values, of_action, of_best
from tidemill.rl.agents.dqn.networks import build_network
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.compilation import compiled
from tidemill.rl.gradients import clip_
from tidemill.rl.learning_rate import LearningRateDecay
from tidemill.rl.networks.image import lay_channels_last
from tidemill.rl.networks.noisy import draw_noise, silence
from tidemill.rl.networks.precision import Products
from tidemill.rl.optimizer import build_optimizer
from tidemill.rl.ranks import ALONE, Ranks
from tidemill.rl.stacks import with_stacks
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.windows import transitions
from tidemill.types import EnvSpec


class DQNAgent:
    """A Q-network, its target and one optimizer."""

    memory_size = 0

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self._stacks_later = device.type == "cuda" and env_spec.frame_stack > 1
        self.window = config.window(env_spec.frame_stack)
        self._values = build_values(config, device)
        self._online = build_network(config, env_spec, seed).to(device)
        is_image = env_spec.observation_dtype == "uint8"
        self._online.products = Products(config.update_precision, device, images=is_image)
        if config.channels_last:
            lay_channels_last(self._online)
        self._target = TargetNetwork(self._online, config.target_every, config.tau)
        self._optimizer = build_optimizer(config, self._online.parameters())
        self._decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates)
        self._loss = compiled(self._loss_of, config.compile, device)
        self._noise = torch.Generator(device).manual_seed(seed)
        self._updates = 0
        self._ranks: Ranks = ALONE

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.windows.transitions`."""
        stack, steps, gamma = self._frame_stack, self._config.n_step, self._config.gamma
        return transitions(columns, index, stack, steps, gamma, stack_later=self._stacks_later)

    def join(self, ranks: Ranks) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._ranks = ranks

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one gradient step on the loss of the values and move the target network if it is time."""
        self._decay.at(self._updates)
        loss, priority, q = self._loss(with_stacks(batch), weight)
        gradients = self._ranks.mean(torch.autograd.grad(loss, self._optimizer.parameters))
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        self._updates += 1
        self._target.follow(self._optimizer.parameters, self._updates)
        return Update(priority, {"loss": loss.detach(), "q": q, "grad_norm": grad_norm})

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the items' new priorities, [B], and the mean value of the actions taken, []."""
        following = self._following(batch["bootstrap_observation"])
        self._draw_noise(self._online, noisy=True)
        taken = of_action(self._online(batch["observation"]), batch["action"])
        item = self._values.loss(taken, batch["n_step_return"], batch["bootstrap_discount"], following)
        return (weight * item.loss).mean(), item.priority, self._values.mean(taken.detach()).mean()

    @torch.no_grad()
    def _following(self, observation: Tensor) -> Tensor:
        """Return the target network's numbers for the action chosen at the bootstrap observation, [B, K]."""
        noisy = self._config.noisy_target
        self._draw_noise(self._target.network, noisy=noisy)
        output: Tensor = self._target.network(observation)
        chooser = output
        if self._config.double:
            self._draw_noise(self._online, noisy=noisy)  # apart from that of the prediction
            chooser = self._online(observation)
        return of_best(output, self._values.mean(chooser))

    def _draw_noise(self, network: torch.nn.Module, *, noisy: bool) -> None:
        if self._config.noisy and noisy:
            draw_noise(network, self._noise)
        elif self._config.noisy:
            silence(network)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the Q-network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer, noise generator and counter."""
        return {
            "online": dict(self._online.state_dict()),
            "target": dict(self._target.network.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "noise": self._noise.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._online.load_state_dict(state["online"])
        self._target.network.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._noise.set_state(state["noise"].cpu())
        self._updates = int(state["updates"])


def build(config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DQNAgent:
    """Return the learner's side of DQN; `tidemill.rl.agents.build` calls this."""
    return DQNAgent(config, env_spec, device, seed)
