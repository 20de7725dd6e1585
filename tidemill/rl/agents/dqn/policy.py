"""DQN's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.dqn.loss import build_values, of_action
from tidemill.rl.agents.dqn.networks import build_network
from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.epsilon_greedy import EpsilonGreedy
from tidemill.rl.exploration import ActorPlace
from tidemill.rl.networks.image import blank_images
from tidemill.rl.networks.noisy import draw_noise, silence
from tidemill.rl.networks.precision import Precision
from tidemill.rl.percept import Percept
from tidemill.rl.returns import n_step
from tidemill.types import EnvSpec


class DQNPolicy:
    """Epsilon-greedy on a Q-network, which may be noisy besides."""

    memory_size = 0

    def __init__(
        self,
        config: DQNConfig,
        env_spec: EnvSpec,
        device: torch.device,
        seed: int,
        place: ActorPlace,
        precision: Precision = "float32",
    ) -> None:
        self._config = config
        self._device = device
        self._values = build_values(config, device)
        self._network = build_network(config, env_spec, seed).to(device).requires_grad_(False)
        if env_spec.observation_dtype == "uint8":  # a small network's time is not in its products
            self._network.compute_in(precision, blank_images(env_spec, place.num_envs).to(device))
        self._chance = EpsilonGreedy(config, place, seed)
        self._noise = torch.Generator(device).manual_seed(seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the Q-network's parameters."""
        self._network.load_state_dict(dict(state))

    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Return epsilon-greedy actions [N]; noise in the network is drawn anew, for each environment its own.

        First priorities want back the network's numbers for the action `taken` and for the `best`, [N, K].
        """
        if self._config.noisy:
            draw_noise(self._network, self._noise, rows=len(percept))
        output = self._output(percept.observation)
        q = self._values.mean(output).cpu().numpy()
        action = self._chance.explore(q, env_steps)
        taken, best = (
            of_action(output, torch.from_numpy(chosen).to(self._device)).cpu().numpy()
            for chosen in (action, q.argmax(axis=1))
        )
        return Decision(action, {"taken": taken, "best": best})

    def greedy(self, percept: Percept) -> Decision:
        """Return the actions of largest Q, without noise, [N]."""
        return Decision(self._q(percept.observation).argmax(axis=1))

    @torch.inference_mode()
    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest tick, [K].

        It is exact while online and target parameters are equal to these (Horgan et al. 2018, section 3).
        """
        reward, terminated, truncated = (ticks[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._config.gamma)
        following = ticks["best"][target.bootstrap_index, np.arange(len(target.return_))]
        arguments = (ticks["taken"][0], target.return_, target.discount, following)
        item = self._values.loss(*(torch.from_numpy(array).to(self._device) for array in arguments))
        priority: NDArray[np.float32] = item.priority.cpu().numpy()
        return priority

    @torch.inference_mode()
    def _output(self, observation: Array) -> Tensor:
        """Return the network's numbers, [N, A, K]."""
        tensor = torch.from_numpy(observation).to(self._device)  # as it lies in memory
        output: Tensor = self._network(tensor)
        return output

    def _q(self, observation: Array) -> NDArray[np.float32]:
        """Return Q without noise, [N, A]."""
        if self._config.noisy:
            silence(self._network)
        q: NDArray[np.float32] = self._values.mean(self._output(observation)).cpu().numpy()
        return q


def build(config: DQNConfig, env_spec: EnvSpec, acting: Acting) -> DQNPolicy:
    """Return the acting side of DQN; `tidemill.rl.agents.build` calls this."""
    return DQNPolicy(config, env_spec, acting.device, acting.seed, acting.place, acting.precision)
