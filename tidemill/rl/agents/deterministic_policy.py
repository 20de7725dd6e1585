"""The acting side of every deterministic policy gradient: an actor, and noise while it explores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.networks.deterministic import DeterministicActor
from tidemill.rl.networks.flat import flat
from tidemill.rl.noise import ActionNoise, NoiseConfig
from tidemill.rl.percept import Percept


class DeterministicPolicy:
    """Acts by the actor; disturbs its actions to explore."""

    memory_size = 0

    def __init__(
        self,
        actor: DeterministicActor,
        action_shape: tuple[int, ...],
        noise: NoiseConfig,
        random_steps: int,
        acting: Acting,
    ) -> None:
        """Put the parts together.

        Args:
            actor: Maps observations to flat actions; this object then owns it.
            action_shape: Shape of one action.
            noise: How actions are disturbed.
            random_steps: Environment steps of the whole cluster for which actions are uniformly random.
            acting: Where it acts, and the seed of the noise.
        """
        self._actor = actor.to(acting.device).requires_grad_(False)
        self._action_shape, self._random_steps, self._device = action_shape, random_steps, acting.device
        self._noise = ActionNoise(noise, acting.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*`."""
        self._actor.load_state_dict({name.removeprefix("actor."): value for name, value in state.items()})

    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Return uniform actions for the first `random_steps`, then the actor's with noise."""
        if env_steps < self._random_steps:
            return Decision(self._shaped(self._noise.uniform((len(percept), self._action_size))))
        return Decision(self._shaped(self._noise.disturb(self._act(percept.observation), percept.is_first)))

    def greedy(self, percept: Percept) -> Decision:
        """Return the actor's actions, float32 [N, *action_shape]."""
        return Decision(self._shaped(self._act(percept.observation)))

    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return 1 for each window: what a new item is worth until the learner has seen it."""
        return np.ones(ticks["reward"].shape[1], dtype=np.float32)

    @property
    def _action_size(self) -> int:
        return self._actor.head.out_features

    @torch.inference_mode()
    def _act(self, observation: Array) -> NDArray[np.float32]:
        tensor = torch.from_numpy(np.ascontiguousarray(observation)).to(self._device)
        action: NDArray[np.float32] = self._actor(flat(tensor)).cpu().numpy()
        return action

    def _shaped(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        return action.reshape(len(action), *self._action_shape)
