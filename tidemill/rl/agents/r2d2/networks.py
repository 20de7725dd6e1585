"""R2D2's network, as its agent and its policy both need it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.linear import Linear, linear
from tidemill.rl.networks.lstm import LSTM, State, unrolled
from tidemill.rl.networks.precision import FLOAT32, Precision, acting_dtype
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.types import EnvSpec


class RecurrentQNetwork(nn.Module):
    """Torso, fully connected layers, LSTM and head: T steps of B streams -> Q, float32 [T, B, A]."""

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self._num_actions = env_spec.num_actions
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        widths = (int(self.torso.outputs), *config.hidden_sizes)  # type: ignore[arg-type]  # every torso has it
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.lstm = LSTM(widths[-1] + env_spec.num_actions + 1, config.lstm_size, rng)
        self.head = QHead(
            config.lstm_size, config.head_sizes, env_spec.num_actions, 1, rng, dueling=config.dueling, noise_std=0.0
        )

        self.matmul_precision = FLOAT32
        """In which format updates multiply before the LSTM."""

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, is_first: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """Return Q [T, B, A] and the state after the last step.

        Args:
            observation: [T, B, ...].
            last_action: Before each observation, int64 [T, B]; like the reward, meaningless where `is_first`.
            last_reward: With each observation, float32 [T, B].
            is_first: Whether an episode begins there, bool [T, B]: the recurrent_state is reset.
            state: Before the first step, each [B, H].
        """
        gates = self.gates(observation, self.before(last_action, last_reward, is_first))
        output, state = unrolled(gates, self.lstm.output_weight, is_first, state)
        return self.values(output), state

    def gates(self, observation: Tensor, before: Tensor) -> Tensor:
        """Return what goes into the LSTM of each step, [T, B, 4 H], of observations [T, B, ...] and `before`."""
        with self.matmul_precision():
            x: Tensor = self.torso(observation.flatten(0, 1))
            for layer in self.hidden:
                x = torch.relu(layer(x))
        return self.lstm.gates(torch.cat((x.float().unflatten(0, before.shape[:2]), before), dim=-1))

    def values(self, output: Tensor) -> Tensor:
        """Return Q [T, B, A] of the LSTM's outputs, [T, B, H]."""
        q: Tensor = self.head(output.flatten(0, 1)).squeeze(-1).unflatten(0, output.shape[:2])
        return q

    def set_compute_dtype(self, precision: Precision, images: Tensor) -> None:
        """Put what comes before the LSTM in the number format asked for; `auto` is timed on a batch of `images`."""
        dtype = acting_dtype(self.torso, images, precision)
        for module in (self.torso, *self.hidden):
            module.to(dtype)
            if isinstance(module, Linear):
                module.pack(len(images))

    def before(self, last_action: Tensor, last_reward: Tensor, is_first: Tensor) -> Tensor:
        """Return what came before each step, [T, B, A + 1]; zeros if nothing did. See `forward`.

        It is the last action, one-hot, and the last reward, squashed to -1 .. 1.
        """
        actions = torch.arange(self._num_actions, device=last_action.device)
        action = (last_action.unsqueeze(-1) == actions).float()  # torch's one_hot has the host look at every action
        both = torch.cat((action, last_reward.tanh().unsqueeze(-1)), dim=-1)
        return torch.where(is_first.unsqueeze(-1), 0.0, both)


def build_network(config: R2D2Config, env_spec: EnvSpec, seed: int) -> RecurrentQNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return RecurrentQNetwork(config, env_spec, torch.Generator().manual_seed(seed))
