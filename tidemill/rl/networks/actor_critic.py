"""A policy and a value behind one torso, and the distributions that policies choose actions from.

A categorical policy has one logit per action. A Gaussian one has a mean per action dimension, which the observation
decides, and a log standard deviation, which it does not (Schulman et al. 2017) or does as well; actions beyond [-1, 1]
are stored as they were drawn and clipped by the environment.

With an LSTM behind the torso both also depend on what came before, back to the start of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.layers.lstm import LSTM, Recurrence, to_recurrent_state, to_state
from tidemill.rl.networks.precision import MixedPrecision
from tidemill.rl.networks.squashed_gaussian import split
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.normalization import Standardization
from tidemill.rl.settings.on_policy import ActorCriticSettings
from tidemill.types import EnvSpec

IMPOSSIBLE = -1e30
"""Logit of an action that is not legal: its probability is exactly 0, and finite, so that 0 times it is 0."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def legal_logits(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return logits [..., A] of which those of actions that are not `legal`, bool [..., A], have probability 0."""
    return logits if legal is None else torch.where(legal, logits, IMPOSSIBLE)


class ActionDistribution(NamedTuple):
    """Distributions over actions: categorical if there is no `log_std`.

    Attributes:
        head: Logits [B, A], or means [B, A]; of D independent choices logits [B, D, M], where M is the largest number
            of options and logits beyond a choice's own are those of probability 0.
        log_std: Log standard deviations [A], or [B, A], of a Gaussian; None for a categorical policy.
    """

    head: Tensor
    log_std: Tensor | None

    def first(self, count: int) -> ActionDistribution:
        """Return the first `count` of them."""
        follows = self.log_std is not None and self.log_std.ndim == 2
        return ActionDistribution(self.head[:count], self.log_std[:count] if follows else self.log_std)  # type: ignore[index]

    def sample(self, rng: torch.Generator) -> Tensor:
        """Draw an action of each, int64 [B] or [B, D], or float32 [B, A]."""
        if self.log_std is None:
            chance = torch.rand(self.head.shape, generator=rng, device=self.head.device, dtype=self.head.dtype)
            # the Gumbel trick: the largest of logits and noise is drawn with the softmax's probability
            return (self.head - (-chance.clamp(min=1e-20).log()).log()).argmax(dim=-1)
        noise = torch.randn(self.head.shape, generator=rng, device=self.head.device)
        return torch.addcmul(self.head, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        """Return the most likely action of each, int64 [B] or [B, D], or float32 [B, A] in [-1, 1]."""
        return self.head.argmax(dim=-1) if self.log_std is None else self.head.clamp(-1.0, 1.0)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability, or log-density, of an action of each, [B]."""
        if self.log_std is None:
            return self._summed(self.head.log_softmax(dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1))
        scaled = (action.flatten(1) - self.head) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - _HALF_LOG_2PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropy of each in nats, [B]."""
        if self.log_std is None:
            log_prob = self.head.log_softmax(dim=-1)
            return self._summed(-(log_prob.exp() * log_prob).sum(dim=-1))
        return (self.log_std + 0.5 + _HALF_LOG_2PI).sum(dim=-1).expand(len(self.head))

    def _summed(self, value: Tensor) -> Tensor:
        """Return the sum over independent choices, [B], of one value of each, [B, D]; [B] as it is."""
        return value.sum(dim=-1) if self.head.ndim == 3 else value


class ActorCritic(MixedPrecision):
    """Observations [B, ...] -> distributions over actions, and values [B].

    A recurrent one, which has an `lstm`, takes B = T * N observations of N sequences, the first step's N first, and
    with them a `Recurrence`.
    """

    _places: Tensor | None

    def __init__(self, settings: ActorCriticSettings, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(settings.network, env_spec, rng, settings.network_settings)
        self._activate = torch.tanh if settings.activation == "tanh" else torch.relu
        continuous = not env_spec.action_options
        self._decides_std = continuous and settings.gaussian_std == "observation"
        outputs = env_spec.action_size * (1 + self._decides_std) if continuous else sum(env_spec.action_options)
        outputs_of_torso = int(self.torso.outputs)  # type: ignore[arg-type]  # every torso has it
        self.standardization = Standardization(outputs_of_torso) if settings.normalize_observations else None
        encoded = (outputs_of_torso, *settings.encoder_sizes)
        self.encoder = _layers(encoded, rng, last_gain=math.sqrt(2.0))
        self.lstm = LSTM(encoded[-1], settings.lstm_size, rng) if settings.lstm_size else None
        widths = (settings.lstm_size or encoded[-1], *settings.hidden_sizes)
        # gains as in CleanRL and Stable-Baselines3: a policy that starts nearly uniform, a value that starts near 0
        self.policy = _layers((*widths, outputs), rng, last_gain=0.01)
        self.value = _layers((*widths, 1), rng, last_gain=1.0)
        self.log_std = None
        if self._decides_std:
            nn.init.constant_(self.policy[-1].bias[env_spec.action_size :], settings.initial_log_std)  # type: ignore[index]
        elif continuous:
            self.log_std = nn.Parameter(torch.full((outputs,), settings.initial_log_std))
        self.register_buffer("_places", _places(env_spec.action_sizes) if env_spec.action_sizes else None, False)

    def forward(
        self, observation: Tensor, legal: Tensor | None = None, recurrence: Recurrence | None = None
    ) -> tuple[ActionDistribution, Tensor]:
        """Return the distributions and the values, [B].

        Args:
            observation: [B, ...].
            legal: Whether each action is, bool [B, A], or the options of each choice side by side: others have
                probability 0; None: all are.
            recurrence: Of a recurrent network; None of another.
        """
        features, _ = self._features(observation, recurrence)
        return self._distribution(features, legal), self._value(features)

    def distribution(self, observation: Tensor, legal: Tensor | None = None) -> ActionDistribution:
        """Return the distributions alone, without an LSTM."""
        return self._distribution(self._features(observation, None)[0], legal)

    def policy_head(self, observation: Tensor, recurrence: Recurrence | None = None) -> tuple[Tensor, Tensor | None]:
        """Compute the policy's output for observations.

        Returns:
            The input of `with_legal`, [B, O]: logits of all options side by side, or means; and the
            recurrent state after the last step, [N, 2 H], or None without an LSTM.
        """
        features, recurrent_state = self._features(observation, recurrence)
        return self._through(self.policy, features), recurrent_state

    def with_legal(self, head: Tensor, legal: Tensor | None, log_std: Tensor | None) -> ActionDistribution:
        """Return the distributions of `policy_head`, given which actions are legal, and a Gaussian's `log_std`."""
        if self._decides_std:
            return ActionDistribution(*split(head))
        head = legal_logits(head, legal)
        if self._places is not None:
            head = nn.functional.pad(head, (0, 1), value=IMPOSSIBLE)[:, self._places]
        return ActionDistribution(head, log_std)

    def values(self, observation: Tensor, recurrence: Recurrence | None = None) -> Tensor:
        """Return the values alone, [B]."""
        return self._value(self._features(observation, recurrence)[0])

    def _features(self, observation: Tensor, recurrence: Recurrence | None) -> tuple[Tensor, Tensor | None]:
        """Compute the features that policy and value share, float32 [B, F], and the recurrent state after them."""
        with self.matmul_precision(self.torso, self.encoder):
            features = self.torso(observation)
            if self.standardization is not None:
                features = self.standardization(features.float())
            for layer in self.encoder:
                features = self._activate(layer(features))
        features = features.float()
        if self.lstm is None:
            return features, None
        assert recurrence is not None, "a recurrent network has to know where episodes start"
        steps = features.unflatten(0, recurrence.is_first.shape)
        outputs, state = self.lstm(steps, recurrence.is_first, to_state(recurrence.recurrent_state))
        return outputs.flatten(0, 1), to_recurrent_state(state)

    def _distribution(self, features: Tensor, legal: Tensor | None) -> ActionDistribution:
        return self.with_legal(self._through(self.policy, features), legal, self.log_std)

    def _value(self, features: Tensor) -> Tensor:
        return self._through(self.value, features).squeeze(-1)

    def _through(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        hidden = layers[:-1]
        with self.matmul_precision(hidden):
            for layer in hidden:
                x = self._activate(layer(x))
        output: Tensor = layers[-1](x.float())
        return output


def build_actor_critic(settings: ActorCriticSettings, env_spec: EnvSpec, seed: int) -> ActorCritic:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return ActorCritic(settings, env_spec, torch.Generator().manual_seed(seed))


def _places(sizes: Sequence[int]) -> Tensor:
    """Return where each choice's logits stand in a row of all of them, int64 [D, M]; those it has not at the end."""
    first = list(accumulate(sizes, initial=0))
    longest, end = max(sizes), first[-1]
    rows = [[first[i] + k if k < size else end for k in range(longest)] for i, size in enumerate(sizes)]
    return torch.tensor(rows)


def _layers(widths: Sequence[int], rng: torch.Generator, last_gain: float) -> nn.ModuleList:
    """Return linear layers with orthogonal weights and biases of 0; the gain is sqrt(2), except in the last."""
    layers = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
    for layer in layers:
        gain = last_gain if layer is layers[-1] else math.sqrt(2.0)
        nn.init.orthogonal_(layer.weight, gain, generator=rng)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers
