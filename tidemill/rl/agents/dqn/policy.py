"""DQN's acting side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.dqn.loss import build_value_head, gather_action, munchausen_bonus
from tidemill.rl.agents.dqn.networks import build_network
from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.exploration import ActorSlot, EpsilonGreedy, greedy
from tidemill.rl.losses import mask_illegal, soft_value
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.image import blank_images
from tidemill.rl.networks.noisy import disable_noise, reset_noise, reset_noise_rows
from tidemill.rl.networks.precision import Precision
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.returns import n_step
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec


class DQNPolicy:
    """Epsilon-greedy on a Q-network, which may be noisy besides."""

    recurrent_state_size = 0
    priority_uses_params = False

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
        self._network = build_network(config, env_spec, seed).to(device).requires_grad_(False).eval()
        if env_spec.is_image:  # a small network's time is not in its products
            self._network.set_compute_dtype(precision, blank_images(env_spec, slot.num_envs).to(device))
        self._chance = EpsilonGreedy(config, slot, seed)
        self._noise = torch.Generator(device).manual_seed(seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the Q-network's parameters."""
        self._network.load_state_dict(dict(state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q, without noise.

        Each environment has separate noise, drawn again at each call. Initial priorities need the network's
        numbers for the action `chosen` and for the `best`, [N, K], in whose place Munchausen has the soft policy's, and
        the `bonus` of the reward, [N].
        """
        if evaluation:
            return PolicyOutput(greedy(self.q_values(policy_input.observation), policy_input.action_mask))
        return self.choose(policy_input, self.forward(policy_input), env_steps)

    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the network's numbers for each action as `q`, [N, A, K]."""
        if self._config.noisy and noise:
            reset_noise_rows(self._network, noise)
        elif self._config.noisy:
            reset_noise(self._network, self._noise, rows=len(policy_input))
        return {"q": self._output(policy_input.observation)}

    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by the network's numbers; see `act`."""
        numbers, legal = output["q"], policy_input.action_mask
        mean = self._value_head.mean(numbers)
        q = mean.cpu().numpy()
        action = self._chance.explore(q, env_steps, legal)
        chosen, best = (
            gather_action(numbers, self._on_device(index)).cpu().numpy() for index in (action, greedy(q, legal))
        )
        if not self._config.munchausen_scale:
            return PolicyOutput(action, {"chosen": chosen, "best": best})
        legal_q = mask_illegal(mean, None if legal is None else self._on_device(legal))
        soft = soft_value(numbers, legal_q, self._config.munchausen_temperature).cpu().numpy()
        bonus = munchausen_bonus(self._config, legal_q, self._on_device(action)).cpu().numpy()
        return PolicyOutput(action, {"chosen": chosen, "best": soft, "bonus": bonus})

    def q_values(self, observation: Array) -> NDArray[np.float32]:
        """Return Q of every action without noise, float32 [N, A], for stacked observations, [N, ...]."""
        if self._config.noisy:
            disable_noise(self._network)
        q: NDArray[np.float32] = self._value_head.mean(self._output(observation)).cpu().numpy()
        return q

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest step, [K].

        It is exact while online and target parameters are equal to these (Horgan et al. 2018, section 3), but for
        the levels that an update of `iqn` draws.
        """
        reward, terminated, truncated = (steps[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._config.gamma)
        bootstrap = steps["best"][target.bootstrap_index, np.arange(len(target.return_))]
        return_ = target.return_ + steps["bonus"][0] if self._config.munchausen_scale else target.return_
        arguments = (steps["chosen"][0], return_, target.discount, bootstrap)
        item = self._value_head.loss(*(self._on_device(array) for array in arguments))
        priority: NDArray[np.float32] = item.priority.cpu().numpy()
        return priority

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actions of largest Q, without noise."""
        if self._config.noisy:
            disable_noise(self._network)
        return EvaluationNetwork(self._network, lambda network, seen: self._value_head.mean(network(seen)).argmax(1))

    @torch.inference_mode()
    def _output(self, observation: Array) -> Tensor:
        """Return the network's numbers, [N, A, K]."""
        output: Tensor = self._network(self._on_device(observation))  # as it lies in memory
        return output

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def build(config: DQNConfig, env_spec: EnvSpec, context: PolicyContext) -> DQNPolicy:
    """Return the acting side of DQN; `tidemill.rl.agents.registry` calls this."""
    return DQNPolicy(config, env_spec, context.device, context.seed, context.slot, context.precision)
