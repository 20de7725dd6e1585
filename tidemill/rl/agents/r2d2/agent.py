"""R2D2's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.r2d2.config import R2D2Config
from tidemill.rl.agents.r2d2.loss import sequence_loss, sequence_target
from tidemill.rl.agents.r2d2.networks import RecurrentQNetwork, build_network, to_state
from tidemill.rl.compilation import compiled
from tidemill.rl.gradients import clip_
from tidemill.rl.learning_rate import LearningRateDecay
from tidemill.rl.networks.image import lay_channels_last
from tidemill.rl.networks.precision import Products
from tidemill.rl.optimizer import build_optimizer
from tidemill.rl.ranks import ALONE, Ranks
from tidemill.rl.sequences import sequences
from tidemill.rl.target_network import TargetNetwork
from tidemill.types import EnvSpec

_STEPS = ("observation", "last_action", "last_reward", "is_first")


class R2D2Agent:
    """A recurrent Q-network, its target and one optimizer."""

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._shape = config.shape(env_spec.frame_stack)
        self.window = config.window(env_spec.frame_stack)
        self.memory_size = config.memory_size
        self._online = build_network(config, env_spec, seed).to(device)
        is_image = env_spec.observation_dtype == "uint8"
        self._online.products = Products(config.update_precision, device, images=is_image)
        if config.channels_last:
            lay_channels_last(self._online)
        self._target = TargetNetwork(self._online, config.target_every, config.tau)
        self._optimizer = build_optimizer(config, self._online.parameters())
        self._decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates)
        self._loss = compiled(self._loss_of, config.compile, device)
        self._updates = 0
        self._ranks: Ranks = ALONE

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return sequences; see `tidemill.rl.sequences.sequences`."""
        return sequences(columns, index, self._shape, self._config.gamma)

    def join(self, ranks: Ranks) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._ranks = ranks

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one gradient step on the loss of the unrolls and move the target network if it is time."""
        self._decay.at(self._updates)
        loss, priority, q = self._loss({**batch, "observation": self._observations(batch)}, weight)
        gradients = self._ranks.mean(torch.autograd.grad(loss, self._optimizer.parameters))
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        self._updates += 1
        self._target.follow(self._optimizer.parameters, self._updates)
        return Update(priority, {"loss": loss.detach(), "q": q, "grad_norm": grad_norm})

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the sequences' new priorities, [B], and the mean value of the actions taken, []."""
        steps = {name: batch[name].transpose(0, 1) for name in _STEPS}
        q = self._unrolled(self._online, steps, batch["memory"])
        taken = q[: self._config.unroll].gather(2, batch["action"].transpose(0, 1).unsqueeze(-1)).squeeze(-1)
        target = self._targets(batch, steps, q.detach())
        item = sequence_loss(taken, target, batch["is_trained"].transpose(0, 1), self._config.priority_mix)
        return (weight * item.loss).mean(), item.priority, taken.detach().mean()

    def _observations(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return what each step shows, [B, T, ...], with stacks put together on the device."""
        observation = batch["observation"]
        if "stack" in batch:
            item = torch.arange(len(observation), device=observation.device)[:, None, None]
            observation = observation[item, batch["stack"]]
        return observation

    def _unrolled(self, network: RecurrentQNetwork, steps: Mapping[str, Tensor], memory: Tensor) -> Tensor:
        """Return Q of the steps after the burn-in, [U + n, B, A], from a memory that the burn-in has refreshed."""
        burn_in, state = self._config.burn_in, to_state(memory)
        if burn_in:
            with torch.no_grad():
                _, state = network(**{name: column[:burn_in] for name, column in steps.items()}, state=state)
        q: Tensor = network(**{name: column[burn_in:] for name, column in steps.items()}, state=state)[0]
        return q

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor], steps: Mapping[str, Tensor], online_q: Tensor) -> Tensor:
        """Return the target of each step of the unroll, [U, B]."""
        target_q = self._unrolled(self._target.network, steps, batch["memory"])
        best = (online_q if self._config.double else target_q).argmax(dim=2, keepdim=True)
        value = target_q.gather(2, best).squeeze(2)  # of every step, [U + n, B]
        following = value.gather(0, batch["bootstrap"].transpose(0, 1) - self._config.burn_in)
        return_, discount = (batch[name].transpose(0, 1) for name in ("n_step_return", "bootstrap_discount"))
        return sequence_target(return_, discount, following, self._config.value_rescaling)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer and counter; an update draws no random numbers."""
        return {
            "online": dict(self._online.state_dict()),
            "target": dict(self._target.network.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._online.load_state_dict(state["online"])
        self._target.network.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = int(state["updates"])


def build(config: R2D2Config, env_spec: EnvSpec, device: torch.device, seed: int) -> R2D2Agent:
    """Return the learner's side of R2D2; `tidemill.rl.agents.build` calls this."""
    return R2D2Agent(config, env_spec, device, seed)
