"""R2D2's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.r2d2.loss import sequence_loss, sequence_target
from tidemill.rl.agents.r2d2.networks import build_network
from tidemill.rl.compilation import compiled
from tidemill.rl.losses import mask_illegal
from tidemill.rl.networks.image import to_channels_last
from tidemill.rl.networks.lstm import to_state, unrolled
from tidemill.rl.networks.precision import MatmulPrecision
from tidemill.rl.optimizers import LearningRateDecay, build_optimizer, clip_
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.sequences import sequences
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.update_graph import recorded
from tidemill.types import ACTION_MASK, EnvSpec

_STEPS = ("observation", "last_action", "last_reward", "is_first")


class R2D2Agent:
    """A recurrent Q-network, its target and one optimizer."""

    observation_columns = ("observation",)

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._shape = config.shape(env_spec.frame_stack)
        self.window = config.window(env_spec.frame_stack)
        self.recurrent_state_size = config.recurrent_state_size
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
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
        self._state = TrainState(
            {"online": self._online, "target": self._target.network}, {"optimizer": self._optimizer}
        )
        self._run_update = recorded(self._updated, config.compile, device, self._state)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return sequences; see `tidemill.rl.sequences.sequences`."""
        return sequences(columns, index, self._shape, self._config.gamma, row_extras=self._masks)

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the loss of the unrolls and move the target network if it is time."""
        self._decay.at(self._state.updates)
        update = self._run_update(batch, weight, self._target.is_due(self._state.updates + 1))
        self._state.updates += 1
        return update

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        loss, priority, q = self._loss({**batch, "observation": self._observations(batch)}, weight)
        gradients = self._state.group.mean(torch.autograd.grad(loss, self._optimizer.parameters))
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        self._target.update(self._optimizer.parameters, self._state.updates + 1)
        return Update(priority, {"loss": loss.detach(), "q": q, "grad_norm": grad_norm})

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the sequences' new priorities, [B], and the mean value of the actions taken, []."""
        steps = {name: batch[name].transpose(0, 1) for name in _STEPS}
        q, target_q = self._unrolled(steps, batch["recurrent_state"])
        chosen_q = q[: self._config.unroll].gather(2, batch["action"].transpose(0, 1).unsqueeze(-1)).squeeze(-1)
        target = self._targets(batch, q.detach(), target_q)
        item = sequence_loss(chosen_q, target, batch["is_trained"].transpose(0, 1), self._config.priority_mix)
        return (weight * item.loss).mean(), item.priority, chosen_q.detach().mean()

    def _observations(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return what each step shows, [B, T, ...], with stacks put together on the device."""
        observation = batch["observation"]
        if "stack" in batch:
            item = torch.arange(len(observation), device=observation.device)[:, None, None]
            observation = observation[item, batch["stack"]]
        return observation

    def _unrolled(self, steps: Mapping[str, Tensor], recurrent_state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q of both networks, of the steps after the burn-in, [U + n, B, A], from the states that it ends with.

        Online and target network go step by step together, so that a GPU is given half of the kernels.
        """
        burn_in, is_first = self._config.burn_in, steps["is_first"]
        online, target = self._online, self._target.network
        weights = online.lstm.output_weight, target.lstm.output_weight
        output, cell = (part.expand(2, -1, -1) for part in to_state(recurrent_state))
        observation = steps["observation"].contiguous()  # parts of it are then views
        before = online.before(steps["last_action"], steps["last_reward"], is_first)
        with torch.no_grad():
            target_gates = target.gates(observation, before)
            if burn_in:
                gates = online.gates(observation[:burn_in], before[:burn_in])
                fixed = target_gates[:burn_in], weights[1]
                _, (output, cell) = unrolled(gates, weights[0], is_first[:burn_in], (output, cell), fixed)
        gates = online.gates(observation[burn_in:], before[burn_in:])
        fixed = target_gates[burn_in:], weights[1]
        outputs, _ = unrolled(gates, weights[0], is_first[burn_in:], (output, cell), fixed)
        q: Tensor = online.values(outputs[:, 0])
        with torch.no_grad():
            return q, target.values(outputs[:, 1])

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor], online_q: Tensor, target_q: Tensor) -> Tensor:
        """Return the target of each step of the unroll, [U, B], by Q of both networks, [U + n, B, A]."""
        legal = batch[ACTION_MASK].transpose(0, 1)[self._config.burn_in :] if ACTION_MASK in batch else None
        best = mask_illegal(online_q if self._config.double else target_q, legal).argmax(dim=2, keepdim=True)
        value = target_q.gather(2, best).squeeze(2)  # of every step, [U + n, B]
        bootstrap_q = value.gather(0, batch["bootstrap"].transpose(0, 1) - self._config.burn_in)
        return_, discount = (batch[name].transpose(0, 1) for name in ("n_step_return", "bootstrap_discount"))
        return sequence_target(return_, discount, bootstrap_q, self._config.value_rescaling)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the network's parameters."""
        return {name: value.detach().clone() for name, value in self._online.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, target, optimizer and counter; an update draws no random numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)


def build(config: R2D2Config, env_spec: EnvSpec, device: torch.device, seed: int) -> R2D2Agent:
    """Return the learner's side of R2D2; `tidemill.rl.agents.registry` calls this."""
    return R2D2Agent(config, env_spec, device, seed)
