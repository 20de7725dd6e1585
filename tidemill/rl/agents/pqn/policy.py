"""PQN's acting side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.agents.pqn.networks import build_network
from tidemill.rl.exploration import EpsilonGreedy, greedy
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.types import EnvSpec


class PQNPolicy:
    """Epsilon-greedy on a Q-network."""

    recurrent_state_size = 0
    priority_uses_params = False

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._device = context.device
        self._network = build_network(config, env_spec, context.seed).to(context.device).requires_grad_(False).eval()
        self._chance = EpsilonGreedy(config, context.slot, context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q."""
        output = self.forward(policy_input)
        if evaluation:
            return PolicyOutput(greedy(output["q"].cpu().numpy(), policy_input.action_mask))
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the value of every action as `q`, [N, A]."""
        observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        return {"q": self._network(observation)}

    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by the values."""
        q = output["q"].cpu().numpy()
        return PolicyOutput(self._chance.explore(q, env_steps, policy_input.action_mask))

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actions of largest Q."""
        return EvaluationNetwork(self._network, lambda network, seen: network(seen).argmax(1))

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return 1 for each window: each is used once, in the order they came."""
        return np.ones(steps["reward"].shape[1], dtype=np.float32)


def build(config: PQNConfig, env_spec: EnvSpec, context: PolicyContext) -> PQNPolicy:
    """Return the acting side of PQN; `tidemill.rl.agents.build` calls this."""
    return PQNPolicy(config, env_spec, context)
