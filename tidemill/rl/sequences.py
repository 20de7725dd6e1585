"""Batches of sequences for a recurrent agent, made from the rows of a stream. NumPy only, for decoder threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.observation_parts import gather_observations
from tidemill.rl.returns import n_step
from tidemill.types import WindowSpec

RETURN_COLUMNS = ("reward", "terminated", "truncated")
"""Columns that returns are computed from."""


@dataclass(frozen=True)
class SequenceShape:
    """Division of an item: history, burn-in, unroll, and rows to bootstrap from.

    Attributes:
        frame_stack: Observations the network sees at once.
        burn_in: Rows that only warm the memory up.
        unroll: Rows that are trained on.
        n_step: Rewards summed before bootstrapping, and rows after the unroll.
    """

    frame_stack: int
    burn_in: int
    unroll: int
    n_step: int

    @property
    def history(self) -> int:
        """Rows before the burn-in: those of the first stack, and at least one for the first last action and reward."""
        return max(self.frame_stack - 1, 1)

    @property
    def rows(self) -> int:
        """Rows that the network passes through, T."""
        return self.burn_in + self.unroll + self.n_step

    def window(self, stride: int) -> WindowSpec:
        """Return the window of an item; neighbouring ones start `stride` rows apart."""
        return WindowSpec(self.history, self.rows - 1, stride)


class Targets(NamedTuple):
    """Inputs of the n-step targets of an unroll's rows; all of shape [B, U].

    Attributes:
        return_: Discounted sum of the rewards summed, float32.
        discount: Factor of the bootstrap value, or 0 where the episode terminated, float32.
        bootstrap: Row to bootstrap from, counted from the burn-in's first, int64.
    """

    return_: NDArray[np.float32]
    discount: NDArray[np.float32]
    bootstrap: NDArray[np.int64]


def unroll_targets(rows: Mapping[str, Array], shape: SequenceShape, gamma: float) -> Targets:
    """Return the n-step targets of every row of the unroll; the rows of an ended episode are never looked beyond.

    Args:
        rows: `reward` float32, `terminated` and `truncated` bool of the T rows, [B, T].
        shape: How the rows are divided.
        gamma: Discount of one step.
    """
    start = shape.burn_in + np.arange(shape.unroll)
    within = start[:, None] + np.arange(shape.n_step)  # [U, n]
    flat = {name: column[:, within].reshape(-1, shape.n_step) for name, column in rows.items()}
    target = n_step(flat["reward"], flat["terminated"], flat["truncated"], gamma)
    size = (-1, shape.unroll)
    return Targets(
        target.return_.reshape(size), target.discount.reshape(size), start + target.bootstrap_index.reshape(size)
    )


def sequences(
    columns: Mapping[str, Array],
    index: NDArray[np.int64],
    shape: SequenceShape,
    gamma: float,
    *,
    extras: Sequence[str] = (),
    row_extras: Sequence[str] = (),
) -> dict[str, Array]:
    """Return the sequences of a batch of windows; see `tidemill.rl.transitions.transitions` for the rows of a stream.

    A window may hold the end of one episode and the start of the next. Nothing is carried over: the memory is
    reset at `is_first`, no return reaches beyond an end, and a final observation step, whose action was
    ignored, is left out.

    Args:
        columns: `observation` [R, ...] or those of its parts, `action` [R], `reward` [R] float32, `terminated`,
            `truncated` and `is_first` [R] bool: the rows of any number of streams.
        index: Rows of each window, oldest first, [B, shape.history + T].
        shape: How a window is divided.
        gamma: Discount of one step.
        extras: Columns of the algorithm's own to return as well, each [R, ...].
        row_extras: Columns to return of all T rows, such as `action_mask`.

    Returns:
        Of the T rows: `is_first` bool, `last_action` and `last_reward` (meaningless where `is_first`), [B, T], and
        each of `row_extras`, [B, T, ...];
        `observation` [B, T, ...] or, with a stack, all frames of the window [B, L, ...] and `stack`, which of them
        each row shows, int64 [B, T, frame_stack]. Of the U rows of the unroll, [B, U]: `action`, each of `extras`,
        `is_trained` bool, `n_step_return`, `bootstrap_discount` and `bootstrap`, see `Targets`.
    """
    assert index.shape == (len(index), shape.history + shape.rows), f"index {index.shape} does not fit {shape}"
    rows, before = index[:, shape.history :], index[:, shape.history - 1 : -1]
    unroll = slice(shape.burn_in, shape.burn_in + shape.unroll)
    is_first = columns["is_first"][rows]
    ended = (columns["terminated"] | columns["truncated"])[before]
    target = unroll_targets({name: columns[name][rows] for name in RETURN_COLUMNS}, shape, gamma)
    batch = {
        "is_first": is_first,
        "last_action": columns["action"][before],
        "last_reward": columns["reward"][before],
        "action": columns["action"][rows[:, unroll]],
        "is_trained": ~(ended & ~is_first)[
            :, unroll
        ],  # a row that follows an end and begins nothing is a final observation step
        "n_step_return": target.return_,
        "bootstrap_discount": target.discount,
        "bootstrap": target.bootstrap,
        **{name: columns[name][rows[:, unroll]] for name in extras},
        **{name: columns[name][rows] for name in row_extras},
    }
    return batch | _observations(columns, index, shape)


def _observations(columns: Mapping[str, Array], index: NDArray[np.int64], shape: SequenceShape) -> dict[str, Array]:
    if shape.frame_stack == 1:
        return {"observation": gather_observations(columns, index[:, shape.history :])}
    positions = np.arange(index.shape[1])
    starts = np.maximum.accumulate(np.where(columns["is_first"][index], positions, 0), axis=1)  # of each row's episode
    oldest = positions[shape.history :, None] + np.arange(1 - shape.frame_stack, 1)  # [T, stack]
    stack = np.maximum(oldest, starts[:, shape.history :, None])
    return {"observation": gather_observations(columns, index), "stack": stack}
