"""PQN's learner side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.on_policy import rollouts
from tidemill.rl.agents.pqn.loss import lambda_target, q_loss
from tidemill.rl.agents.pqn.networks import build_network
from tidemill.rl.minibatches import Shuffle
from tidemill.rl.optimizers import Adam, LearningRateDecay, clip_
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.rl.train_state import TrainState
from tidemill.types import ACTION_MASK, EnvSpec


class PQNAgent:
    """A Q-network and one optimizer. One update makes `epochs * minibatches` gradient steps."""

    recurrent_state_size = 0
    observation_columns = ("observation",)

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._frame_stack = config, env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self.network = build_network(config, env_spec, seed).to(device)
        self._optimizer = Adam(self.network.parameters(), config.learning_rate, epsilon=config.optimizer_epsilon)
        self._decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates)
        self._shuffle = Shuffle(config.minibatches, seed, device)
        self._state = TrainState({"network": self.network}, {"optimizer": self._optimizer}, self._shuffle.rng)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return rollouts; see `tidemill.rl.agents.on_policy.rollouts`."""
        return rollouts(columns, index, self.window, self._frame_stack, self._config.gamma, extras=())

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Learn from a rollout, whose targets stay as they are before the first step; the priorities are 1.

        Reports the loss and the norm of the gradient of the last gradient step.
        """
        self._decay.at(self._state.updates)
        rollout = {name: column.transpose(0, 1) for name, column in batch.items()}
        target, q = self.targets(rollout)
        steps = {"observation": rollout["observation"][:-1], "action": rollout["action"][:-1], "target": target}
        steps["weight"] = rollout["is_trained"] * weight
        flat = {name: column.flatten(0, 1) for name, column in steps.items()}
        metrics = {"q": q}
        for _ in range(self._config.epochs):
            for index in self._shuffle.positions(len(flat["weight"])):
                metrics |= self._step({name: column[index] for name, column in flat.items()})
        self._state.updates += 1
        return Update(torch.ones_like(weight), metrics)

    @torch.no_grad()
    def targets(self, rollout: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the target of each step's action, [T, B], and the mean value of those taken, [].

        Args:
            rollout: What `decode` returned with time first: observations and masks of T + 1 steps, the rest of T.
        """
        observation, action = rollout["observation"], rollout["action"]
        q = self.network(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])
        columns = (rollout["reward"], rollout["discount"], rollout["continues"])
        target = lambda_target(q, rollout.get(ACTION_MASK), *columns, self._config.trace_decay)
        return target, q.gather(2, action.unsqueeze(2)).mean()

    def _step(self, steps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        chosen_q = self.network(steps["observation"]).gather(1, steps["action"].unsqueeze(1)).squeeze(1)
        loss = q_loss(chosen_q, steps["target"], steps["weight"])
        gradients = self._state.group.mean(torch.autograd.grad(loss, self._optimizer.parameters))
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        return {"loss": loss.detach(), "grad_norm": grad_norm}

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the network's parameters."""
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def state_dict(self) -> State:
        """Return network, optimizer, the generator of the minibatches and the counter."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)


def build(config: PQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> PQNAgent:
    """Return the learner's side of PQN; `tidemill.rl.agents.build` calls this."""
    return PQNAgent(config, env_spec, device, seed)
