"""DQN's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.exploration import ActorPlace, epsilon_ladder, epsilon_schedule
from tidemill.rl.networks.precision import Precision, acting_dtype
from tidemill.rl.networks.q_network import QNetwork
from tidemill.rl.priorities import td_error_priority
from tidemill.types import EnvSpec


class DQNPolicy:
    """Epsilon-greedy on a Q-network."""

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
        self._num_actions = env_spec.num_actions
        self._device = device
        init = torch.Generator().manual_seed(seed)
        network = QNetwork(env_spec, config.network, config.hidden_sizes, config.dueling, init)
        self._network = network.to(device).requires_grad_(False)
        if config.network != "mlp":  # a small network's time is not in its products
            image = torch.zeros((place.num_envs, env_spec.frame_stack, *env_spec.observation_shape), dtype=torch.uint8)
            self._network.torso.to(acting_dtype(network.torso, image.to(device), precision))
        self._ladder = epsilon_ladder(place, config.ladder_base, config.ladder_alpha)
        self._rng = np.random.default_rng(seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the Q-network's parameters."""
        self._network.load_state_dict(dict(state))

    def explore(self, observation: Array, env_steps: int, is_first: NDArray[np.bool_] | None = None) -> Decision:
        """Return epsilon-greedy actions [N], with `q_taken` and `q_max` for first priorities."""
        q = self._q(observation)
        action = self._epsilon_greedy(q, self.epsilon(env_steps, len(q)))
        return Decision(action, {"q_taken": q[np.arange(len(q)), action], "q_max": q.max(axis=1)})

    def epsilon(self, env_steps: int, num_envs: int) -> NDArray[np.float64]:
        """Return each environment's epsilon at a step of the whole cluster, [num_envs]."""
        if self._config.exploration == "ladder":
            assert len(self._ladder) == num_envs, f"placed for {len(self._ladder)} environments, got {num_envs}"
            return self._ladder
        c = self._config
        epsilon = epsilon_schedule(env_steps, c.epsilon_start, c.epsilon_final, c.epsilon_decay_steps)
        return np.full(num_envs, epsilon)

    def greedy(self, observation: Array) -> NDArray[np.int64]:
        """Return the actions of largest Q, [N]."""
        best: NDArray[np.int64] = self._q(observation).argmax(axis=1)
        return best

    def evaluate(self, observation: Array) -> NDArray[np.int64]:
        """Return actions with `evaluation_epsilon`, [N]."""
        q = self._q(observation)
        return self._epsilon_greedy(q, np.full(len(q), self._config.evaluation_epsilon))

    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return |n-step TD error| of the windows that start at the oldest tick, [N]."""
        return td_error_priority(
            ticks["q_taken"],
            ticks["q_max"],
            ticks["reward"],
            ticks["terminated"],
            ticks["truncated"],
            gamma=self._config.gamma,
        )

    def _epsilon_greedy(self, q: NDArray[np.float32], epsilon: NDArray[np.float64]) -> NDArray[np.int64]:
        explores = self._rng.random(len(q)) < epsilon
        anything = self._rng.integers(self._num_actions, size=len(q))
        return np.where(explores, anything, q.argmax(axis=1))

    @torch.inference_mode()
    def _q(self, observation: Array) -> NDArray[np.float32]:
        """Return Q [N, A]."""
        tensor = torch.from_numpy(np.ascontiguousarray(observation)).to(self._device)
        q: NDArray[np.float32] = self._network(tensor).cpu().numpy()
        return q


def build(config: DQNConfig, env_spec: EnvSpec, acting: Acting) -> DQNPolicy:
    """Return the acting side of DQN; `tidemill.rl.agents.build` calls this."""
    return DQNPolicy(config, env_spec, acting.device, acting.seed, acting.place, acting.precision)
