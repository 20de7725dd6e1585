"""An LSTM behind a torso, for actors and critics that learn from sequences.

Actor and critics have an LSTM each, which also sees the last action and reward, and the layers behind it see the newest
observation besides: as in Ni et al. (2022), "Recurrent Model-Free RL Can Be a Strong Baseline for Many POMDPs", where
one that actor and critics share learned worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.losses import rescale
from tidemill.rl.networks.layers.lstm import LSTM, to_recurrent_state, to_state, unrolled, unrolled_past
from tidemill.rl.networks.precision import FLOAT32, MatmulPrecision
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.networks.torsos import MLP, chosen_torso
from tidemill.rl.policy_io import PolicyInput
from tidemill.rl.settings.base import NormalizingSettings
from tidemill.types import EnvSpec


class Steps(NamedTuple):
    """T steps of B streams as a recurrent network sees them, time first.

    Attributes:
        observation: [T, B, ...].
        last_action: Before each observation, [T, B, A]; like the reward, meaningless where `is_first`.
        last_reward: With each observation, float32 [T, B].
        is_first: Whether an episode begins there, bool [T, B]: the state is reset.
        recurrent_state: Of the actor before the first step, float32 [B, 2 H].
        burn_in: The first steps, which only warm the state up.
        rows: Which steps after the burn-in are wanted, int64 [N], counted stream by stream; None: all of them.
    """

    observation: Tensor
    last_action: Tensor
    last_reward: Tensor
    is_first: Tensor
    recurrent_state: Tensor
    burn_in: int = 0
    rows: Tensor | None = None

    def until(self, step: int) -> Steps:
        """Return the steps before one."""
        return self._replace(
            observation=self.observation[:step],
            last_action=self.last_action[:step],
            last_reward=self.last_reward[:step],
            is_first=self.is_first[:step],
        )


Seen = Tensor | Steps
"""What a network sees: observations [N, ...], or the sequences that those of a recurrent one belong to."""


def observations_of(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the observation of each step of a batch of sequences, [B, T, ...], its stacks put together."""
    observation = batch["observation"]
    if "stack" in batch:
        item = torch.arange(len(observation), device=observation.device)[:, None, None]
        observation = observation[item, batch["stack"]]
    return observation


class RecurrentTorso(nn.Module):
    """Steps -> features of each that is wanted, float32 [N, outputs]: the torso's, and what the LSTM remembers."""

    def __init__(
        self, torso: nn.Module, action_size: int, lstm_size: int, rng: torch.Generator, *, starts_empty: bool
    ) -> None:
        """Make the LSTM.

        Args:
            torso: From observations [B, ...] to features [B, F].
            action_size: Numbers of an action.
            lstm_size: Units.
            rng: Draws the parameters.
            starts_empty: Whether sequences start from zeros instead of the stored state, which is the actor's.
        """
        super().__init__()
        self.torso = torso
        features = int(torso.outputs)  # type: ignore[arg-type]  # every torso has it
        self.lstm = LSTM(features + action_size + 1, lstm_size, rng)
        self.outputs = lstm_size + features
        self._starts_empty = starts_empty

    def forward(self, steps: Steps, precision: MatmulPrecision = FLOAT32) -> Tensor:
        """Return features [N, outputs], stream by stream; `precision` is that of the torso."""
        burn_in = steps.burn_in
        before = before_each(steps)
        with torch.no_grad():
            warming = self._gates(self._features(steps.observation[:burn_in], precision), before[:burn_in])
        features = self._features(steps.observation[burn_in:], precision)
        gates = self._gates(features, before[burn_in:])
        start = torch.zeros_like(steps.recurrent_state) if self._starts_empty else steps.recurrent_state
        outputs = unrolled_past(warming, gates, self.lstm.output_weight, steps.is_first, to_state(start))
        found = torch.cat((outputs, features), dim=-1).transpose(0, 1).flatten(0, 1)
        return found if steps.rows is None else found[steps.rows]

    def step(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """Return the features of one step of B streams, [B, outputs], and the state after it, [B, 2 H]."""
        features = self._features(steps.observation, FLOAT32)
        gates = self._gates(features, before_each(steps))
        outputs, state = unrolled(gates, self.lstm.output_weight, steps.is_first, to_state(steps.recurrent_state))
        return torch.cat((outputs, features), dim=-1).squeeze(0), to_recurrent_state(state)

    def _features(self, observation: Tensor, precision: MatmulPrecision) -> Tensor:
        """Return the torso's features, float32 [T, B, F], of observations [T, B, ...]; of no step if T is 0."""
        if not len(observation):
            return observation.new_zeros((*observation.shape[:2], self.outputs - self.lstm.size), dtype=torch.float32)
        with precision(self.torso):
            features: Tensor = self.torso(observation.flatten(0, 1))
        in_steps: Tensor = features.float().unflatten(0, observation.shape[:2])
        return in_steps

    def _gates(self, features: Tensor, before: Tensor) -> Tensor:
        return self.lstm.gates(torch.cat((features, before), dim=-1))


def needed_torso(
    settings: NormalizingSettings, env_spec: EnvSpec, rng: torch.Generator, lstm_size: int, *, starts_empty: bool
) -> nn.Module | None:
    """Return the torso that the settings ask for, with an LSTM behind it if `lstm_size`; None if there is none.

    The torso `mlp` only lays an observation's numbers side by side, which networks of vectors do themselves. For
    `starts_empty` see `RecurrentTorso`.
    """
    standardized = settings.normalize_observations
    is_flat = chosen_torso(settings.network, env_spec) == MLP and not env_spec.observation_parts
    if is_flat and not lstm_size and not standardized:
        return None
    torso = build_torso(settings.network, env_spec, rng, settings.network_settings, standardized=standardized)
    if lstm_size:
        torso = RecurrentTorso(torso, env_spec.action_size, lstm_size, rng, starts_empty=starts_empty)
    return torso


def before_each(steps: Steps) -> Tensor:
    """The last action and the last reward before each step, [T, B, A + 1]; zeros at the start of an episode.

    The reward is rescaled as R2D2 does values, so that its unit matters little.
    """
    both = torch.cat((steps.last_action, rescale(steps.last_reward).unsqueeze(-1)), dim=-1)
    return torch.where(steps.is_first.unsqueeze(-1), 0.0, both)


def one_step(network: nn.Module, policy_input: PolicyInput, device: torch.device) -> dict[str, Tensor]:
    """Return a network's `output` for one step of N environments.

    Of a network behind a `RecurrentTorso` also the `recurrent_state` after the step, [N, 2 H].
    """
    observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(device)
    torso = getattr(network, "torso", None)
    if not isinstance(torso, RecurrentTorso):
        return {"output": network(observation)}
    rest = (policy_input.last_action, policy_input.last_reward, policy_input.is_first, policy_input.recurrent_state)
    action, reward, is_first, state = (torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in rest)
    steps = Steps(observation[None], action.flatten(1)[None], reward[None], is_first[None], state)
    features, recurrent_state = torso.step(steps)
    return {"output": network.behind(features), "recurrent_state": recurrent_state}  # type: ignore[operator]  # a method


def remembered(output: Mapping[str, Tensor]) -> NDArray[np.float32] | None:
    """Return the recurrent state of what `Policy.forward` returned, [N, 2 H]; None without one."""
    return output["recurrent_state"].cpu().numpy() if "recurrent_state" in output else None
