"""The acting side of every deterministic policy gradient: an actor, and noise while it explores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.networks.deterministic import DeterministicActor
from tidemill.rl.networks.flat import flat
from tidemill.rl.noise import ActionNoise, NoiseConfig
from tidemill.rl.parts import part
from tidemill.rl.percept import Percept
from tidemill.rl.returns import n_step

Surprise = Callable[[Mapping[str, Tensor]], Tensor]
"""How far the networks are from their own targets on a batch such as `Agent.update` takes, [B]."""


class Settings(Protocol):
    """What the settings of every deterministic policy gradient have."""

    @property
    def noise(self) -> NoiseConfig:
        """How actions are disturbed while exploring."""

    @property
    def random_steps(self) -> int:
        """Environment steps of the whole cluster for which actions are uniformly random."""

    @property
    def gamma(self) -> float:
        """Discount of one environment step."""


class DeterministicPolicy:
    """Acts by the actor; disturbs its actions to explore."""

    memory_size = 0

    def __init__(
        self,
        actor: DeterministicActor,
        critic: nn.Module,
        surprise: Surprise,
        settings: Settings,
        action_shape: tuple[int, ...],
        acting: Acting,
    ) -> None:
        """Put the parts together.

        Args:
            actor: Maps observations to flat actions; this object then owns it.
            critic: Values actions, for first priorities; this object then owns it.
            surprise: Gives first priorities, by these two networks.
            settings: The algorithm's.
            action_shape: Shape of one action.
            acting: Where it acts, and the seed of the noise.
        """
        self._actor = actor.to(acting.device).requires_grad_(False)
        self._critic = critic.to(acting.device).requires_grad_(False)
        self._surprise, self._gamma = surprise, settings.gamma
        self._action_shape, self._random_steps, self._device = action_shape, settings.random_steps, acting.device
        self._noise = ActionNoise(settings.noise, acting.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*` and `critic.*`."""
        self._actor.load_state_dict(part("actor", state))
        self._critic.load_state_dict(part("critic", state))

    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Return uniform actions for the first `random_steps`, then the actor's with noise.

        First priorities want back what was seen and what was done.
        """
        if env_steps < self._random_steps:
            flat_action = self._noise.uniform((len(percept), self._action_size))
        else:
            flat_action = self._noise.disturb(self._act(percept.observation), percept.is_first)
        action = self._shaped(flat_action)
        return Decision(action, {"observation": percept.observation, "action": action})

    def greedy(self, percept: Percept) -> Decision:
        """Return the actor's actions, float32 [N, *action_shape]."""
        return Decision(self._shaped(self._act(percept.observation)))

    @torch.inference_mode()
    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest tick, [K].

        It is exact while networks and targets are equal to these and updates draw no noise (Horgan et al. 2018,
        section 3).
        """
        reward, terminated, truncated = (ticks[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._gamma)
        arrays = {
            "observation": ticks["observation"][0],
            "action": ticks["action"][0],
            "n_step_return": target.return_,
            "bootstrap_discount": target.discount,
            "bootstrap_observation": ticks["observation"][target.bootstrap_index, np.arange(len(target.return_))],
        }
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for name, array in arrays.items()}
        priority: NDArray[np.float32] = self._surprise(batch).cpu().numpy()
        return priority

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
