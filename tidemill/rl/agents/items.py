"""What a table's items are to an agent of continuous actions: single transitions or, with an LSTM, sequences.

Losses are made of transitions. Those of a sequence are the steps of its unroll, which stay in one sequence because its
networks see all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.arrays import Array
from tidemill.rl.agents.normalizer import reward_columns
from tidemill.rl.losses import sequence_priority
from tidemill.rl.networks.recurrent import Seen, Steps, observations_of
from tidemill.rl.sequences import SequenceShape, sequences
from tidemill.rl.settings.base import NormalizingSettings, SequenceSettings
from tidemill.rl.transitions import transitions


class Transitions(NamedTuple):
    """N transitions of a batch; of sequences those of the first item, then those of the second, and so on.

    Attributes:
        observation: What the networks see where the actions are taken.
        action: [N, A].
        n_step_return: Discounted sum of rewards, [N].
        bootstrap_discount: gamma**k, or 0 after termination, [N].
        bootstrap_observation: What the networks see of the state to bootstrap from.
        weight: Importance weights, 0 where a transition does not count, [N].
        counts: 1 where a transition counts and 0 elsewhere, float32 [N]; None: all do.
    """

    observation: Seen
    action: Tensor
    n_step_return: Tensor
    bootstrap_discount: Tensor
    bootstrap_observation: Seen
    weight: Tensor
    counts: Tensor | None = None

    def counted(self, value: Tensor) -> Tensor:
        """Return a value of each transition, [N, ...], or 0 of one that does not count."""
        if self.counts is None:
            return value
        return value * self.counts.view(-1, *(1 for _ in value.shape[1:]))


class Items(Protocol):
    """One kind of items: how they are decoded, which transitions they hold, and what they are worth."""

    @property
    def observation_columns(self) -> tuple[str, ...]:
        """See `tidemill.rl.agents.interface.observation_columns_of`."""

    @property
    def sequences(self) -> SequenceShape | None:
        """How sequences are divided; None: items are single transitions."""

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return a batch from rows of streams; see `Agent.decode`."""

    def transitions(self, batch: Mapping[str, Tensor], weight: Tensor) -> Transitions:
        """Return the transitions of a batch, given the importance weights of its items, [B]."""

    def priority(self, td_error: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the items' priorities, [B], given the absolute error of each transition, [N]."""


class SingleTransitions:
    """An item is a transition."""

    observation_columns = ("observation", "bootstrap_observation")
    sequences = None

    def __init__(self, settings: NormalizingSettings, frame_stack: int) -> None:
        self._settings = settings
        self._frame_stack = frame_stack

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        return transitions(
            columns,
            index,
            self._frame_stack,
            self._settings.n_step,
            self._settings.gamma,
            extras=reward_columns(self._settings),
        )

    def transitions(self, batch: Mapping[str, Tensor], weight: Tensor) -> Transitions:
        """Return the batch."""
        return Transitions(
            observation=batch["observation"],
            action=batch["action"].flatten(1),
            n_step_return=batch["n_step_return"],
            bootstrap_discount=batch["bootstrap_discount"],
            bootstrap_observation=batch["bootstrap_observation"],
            weight=weight,
        )

    def priority(self, td_error: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the errors."""
        return td_error


class Sequences:
    """An item is a sequence, as R2D2 has them (Kapturowski et al. 2019)."""

    observation_columns = ("observation",)

    def __init__(self, settings: SequenceSettings, frame_stack: int) -> None:
        self.sequences = settings.shape(frame_stack)
        self._gamma, self._priority_mix = settings.gamma, settings.priority_mix
        self._extras = reward_columns(settings)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return sequences; see `tidemill.rl.sequences.sequences`."""
        return sequences(columns, index, self.sequences, self._gamma, extras=self._extras)

    def transitions(self, batch: Mapping[str, Tensor], weight: Tensor) -> Transitions:
        """Return the transitions of the unrolls."""
        shape, is_trained = self.sequences, batch["is_trained"]
        steps = Steps(
            observation=observations_of(batch).transpose(0, 1),
            last_action=batch["last_action"].transpose(0, 1).flatten(2),
            last_reward=batch["last_reward"].transpose(0, 1),
            is_first=batch["is_first"].transpose(0, 1),
            recurrent_state=batch["recurrent_state"],
            burn_in=shape.burn_in,
        )
        item = torch.arange(len(weight), device=weight.device)[:, None]
        rows = item * (shape.unroll + shape.n_step) + batch["bootstrap"] - shape.burn_in
        # a step that does not count is the last one of an episode, whose reward means nothing
        n_step_return = torch.where(is_trained, batch["n_step_return"], 0.0)
        return Transitions(
            observation=steps.until(shape.burn_in + shape.unroll),
            action=batch["action"].flatten(0, 1).flatten(1),
            n_step_return=n_step_return.flatten(),
            bootstrap_discount=batch["bootstrap_discount"].flatten(),
            bootstrap_observation=steps._replace(rows=rows.flatten()),
            weight=(weight[:, None] * is_trained).flatten(),
            counts=is_trained.flatten().float(),
        )

    def priority(self, td_error: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mix of the largest and the mean error of each sequence."""
        is_trained = batch["is_trained"]
        error = torch.where(is_trained, td_error.view(is_trained.shape), 0.0)
        return sequence_priority(error, is_trained, self._priority_mix)


def items_of(settings: SequenceSettings, frame_stack: int) -> Items:
    """The kind of items these settings ask for: sequences with an LSTM, otherwise single transitions."""
    return Sequences(settings, frame_stack) if settings.lstm_size else SingleTransitions(settings, frame_stack)
