"""DQN's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl import losses, optimizer_state
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
        self._optimizer = torch.optim.Adam(
            self._online.parameters(),
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
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
        self._optimizer.zero_grad(set_to_none=True)
        result.loss.backward()
        metrics = {"loss": result.loss.detach(), "q": prediction.detach().mean()}
        if self._config.max_grad_norm:
            parameters = list(self._online.parameters())
            metrics["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm)
        self._optimizer.step()
        self._updates += 1
        self._move_target()
        return Update(result.td_error.abs(), metrics)

    @torch.no_grad()
    def _td_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        following = batch["bootstrap_observation"]
        bootstrap_q = self._target(following)
        selector_q = self._online(following) if self._config.double else bootstrap_q
        return losses.q_learning_target(
            batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q, selector_q
        )

    @torch.no_grad()
    def _move_target(self) -> None:
        target, online = list(self._target.parameters()), list(self._online.parameters())
        if self._config.target_every == 0:
            torch._foreach_lerp_(target, online, self._config.tau)
        elif self._updates % self._config.target_every == 0:
            torch._foreach_copy_(target, online)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the Q-network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer and counter; an update draws no random numbers."""
        return {
            "online": dict(self._online.state_dict()),
            "target": dict(self._target.state_dict()),
            "optimizer": optimizer_state.pack(self._optimizer),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        optimizer_state.restore(self._optimizer, state["optimizer"])
        self._updates = int(state["updates"])


def _network(config: DQNConfig, env_spec: EnvSpec, seed: int) -> QNetwork:
    rng = torch.Generator().manual_seed(seed)
    return QNetwork(env_spec, config.network, config.hidden_sizes, config.dueling, rng)
