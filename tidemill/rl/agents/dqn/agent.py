"""DQN's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl import losses
from tidemill.rl.adam import Adam
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.networks.q_network import QNetwork
from tidemill.rl.windows import transitions
from tidemill.types import EnvSpec, Signature


class DQNAgent:
    """A Q-network, its target and one optimizer."""

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self._online = _network(config, env_spec, seed).to(device)
        self._target = _network(config, env_spec, seed).to(device).requires_grad_(False)
        self._optimizer = Adam(
            self._online.parameters(),
            config.learning_rate,
            epsilon=config.adam_epsilon,
            weight_decay=config.weight_decay,
        )
        self._target_parameters: list[Tensor] = list(self._target.parameters())
        self._updates = 0

    def extra_columns(self) -> Signature:
        """Return (): first priorities need the actor's Q values, but the learner does not."""
        return ()

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.windows.transitions`."""
        return transitions(columns, index, self._frame_stack, self._config.n_step, self._config.gamma)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one gradient step on the TD loss and move the target network if it is time."""
        q = self._online(batch["observation"])
        prediction = q.gather(1, batch["action"][:, None]).squeeze(1)
        result = losses.td_loss(prediction, self._td_target(batch), weight, huber=self._config.loss == "huber")
        gradients = torch.autograd.grad(result.loss, self._optimizer.parameters)
        grad_norm = self._clip(gradients)
        self._optimizer.step(gradients)
        self._updates += 1
        self._move_target()
        metrics = {"loss": result.loss.detach(), "q": prediction.detach().mean(), "grad_norm": grad_norm}
        return Update(result.td_error.abs(), metrics)

    def _clip(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """Scale the gradients in place to a norm of `max_grad_norm` at most; return the norm before, []."""
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if self._config.max_grad_norm:
            torch._foreach_mul_(gradients, (self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def _td_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        following = batch["bootstrap_observation"]
        bootstrap_q = self._target(following)
        selector_q = self._online(following) if self._config.double else bootstrap_q
        return losses.q_learning_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q, selector_q)

    @torch.no_grad()
    def _move_target(self) -> None:
        online = self._optimizer.parameters
        if self._config.target_every == 0:
            torch._foreach_lerp_(self._target_parameters, online, self._config.tau)
        elif self._updates % self._config.target_every == 0:
            torch._foreach_copy_(self._target_parameters, online)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the Q-network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer and counter; an update draws no random numbers."""
        return {
            "online": dict(self._online.state_dict()),
            "target": dict(self._target.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = int(state["updates"])


def _network(config: DQNConfig, env_spec: EnvSpec, seed: int) -> QNetwork:
    rng = torch.Generator().manual_seed(seed)
    return QNetwork(env_spec, config.network, config.hidden_sizes, config.dueling, rng)


def build(config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> DQNAgent:
    """Return the learner's side of DQN; `tidemill.rl.agents.build` calls this."""
    return DQNAgent(config, env_spec, device, seed)
