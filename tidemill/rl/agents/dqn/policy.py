"""DQN's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.dqn.loss import build_value_head, gather_action
from tidemill.rl.agents.dqn.networks import build_network
from tidemill.rl.agents.interface import Array, PolicyContext
from tidemill.rl.exploration import ActorSlot, EpsilonGreedy
from tidemill.rl.networks.image import blank_images
from tidemill.rl.networks.noisy import disable_noise, reset_noise
from tidemill.rl.networks.precision import Precision
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.returns import n_step
from tidemill.types import EnvSpec


class DQNPolicy:
    """Epsilon-greedy on a Q-network, which may be noisy besides."""

    recurrent_state_size = 0

    def __init__(
        self,
        config: DQNConfig,
        env_spec: EnvSpec,
        device: torch.device,
        seed: int,
        slot: ActorSlot,
        precision: Precision = "float32",
    ) -> None:
        self._config = config
        self._device = device
        self._value_head = build_value_head(config, device)
        self._network = build_network(config, env_spec, seed).to(device).requires_grad_(False)
        if env_spec.observation_dtype == "uint8":  # a small network's time is not in its products
            self._network.set_compute_dtype(precision, blank_images(env_spec, slot.num_envs).to(device))
        self._chance = EpsilonGreedy(config, slot, seed)
        self._noise = torch.Generator(device).manual_seed(seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the Q-network's parameters."""
        self._network.load_state_dict(dict(state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q, without noise.

        Each environment has separate noise, drawn again at each call. Initial priorities need the network's
        numbers for the action `chosen` and for the `best`, [N, K].
        """
        if evaluation:
            return PolicyOutput(self._q(policy_input.observation).argmax(axis=1))
        if self._config.noisy:
            reset_noise(self._network, self._noise, rows=len(policy_input))
        output = self._output(policy_input.observation)
        q = self._value_head.mean(output).cpu().numpy()
        action = self._chance.explore(q, env_steps)
        chosen, best = (
            gather_action(output, torch.from_numpy(index).to(self._device)).cpu().numpy()
            for index in (action, q.argmax(axis=1))
        )
        return PolicyOutput(action, {"chosen": chosen, "best": best})

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest step, [K].

        It is exact while online and target parameters are equal to these (Horgan et al. 2018, section 3).
        """
        reward, terminated, truncated = (steps[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._config.gamma)
        bootstrap = steps["best"][target.bootstrap_index, np.arange(len(target.return_))]
        arguments = (steps["chosen"][0], target.return_, target.discount, bootstrap)
        item = self._value_head.loss(*(torch.from_numpy(array).to(self._device) for array in arguments))
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
            disable_noise(self._network)
        q: NDArray[np.float32] = self._value_head.mean(self._output(observation)).cpu().numpy()
        return q


def build(config: DQNConfig, env_spec: EnvSpec, context: PolicyContext) -> DQNPolicy:
    """Return the acting side of DQN; `tidemill.rl.agents.registry` calls this."""
    return DQNPolicy(config, env_spec, context.device, context.seed, context.slot, context.precision)
