"""Batches of n-step transitions, made from the steps of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.observation_parts import gather_observations
from tidemill.rl.returns import n_step
from tidemill.types import OBSERVATION

if TYPE_CHECKING:  # decoder threads of processes without torch import this module
    from torch import Tensor


FRAMES = "frames"
"""Column of the rows that the items of a batch share, [R, ...]; every other column has one entry an item."""

ROWS = {"observation": "observation_rows", "bootstrap_observation": "bootstrap_rows"}
"""Where each stacked column's rows among `FRAMES` are, if its stacks are put together later."""


def transitions(
    columns: Mapping[str, Array],
    index: NDArray[np.int64],
    frame_stack: int,
    steps: int,
    gamma: float,
    *,
    stack_on_device: bool = False,
    extras: Sequence[str] = (),
    bootstrap_extras: Sequence[str] = (),
) -> dict[str, Array]:
    """Return the n-step transitions of a batch of windows.

    Row t of a stream is (observation_t, action_t, the reward after it, terminated, truncated, is_first
    of observation_t). A truncated row is followed by a final observation step, whose observation is the episode's last.

    Args:
        columns: `observation` [R, ...] or those of its parts, `action` [R, ...], `reward` [R] float32, `terminated`,
            `truncated` and `is_first` [R] bool: the rows of any number of streams.
        index: Rows of each window, oldest first, [B, frame_stack + steps]. At a stream's start the missing
            history repeats the stream's first row. A window of fewer steps repeats its first row, too, and is the
            return of these steps: where observations are stacked only if it has no history.
        frame_stack: Observations the network sees at once.
        steps: n of the n-step return.
        gamma: Discount of one step.
        stack_on_device: Whether `tidemill.rl.transitions` puts the stacks together, where the network is. Not those of
            observations of several parts.
        extras: Columns of the algorithm's own to return as well, each [R, ...].
        bootstrap_extras: Columns to return of the step that is bootstrapped from, such as `action_mask`.

    Returns:
        `observation` and `bootstrap_observation` [B, ...], or [B, frame_stack, ...] oldest first if
        `frame_stack` > 1; `action` and each of `extras` [B, ...]; `n_step_return` and `bootstrap_discount` [B]
        float32; each of `bootstrap_extras` as `bootstrap_` and its name, [B, ...]. With `stack_on_device` the first two
        are missing, and there are `FRAMES` and the columns of `ROWS`, int64 [B, frame_stack] or [B].
    """
    assert index.shape == (len(index), frame_stack + steps), f"index {index.shape} must be [B, stack + steps]"
    first = frame_stack - 1  # position of the first action
    index = pad_behind(index, first)
    acting, following = index[:, first:-1], index[:, first + 1 :]
    cut = columns["truncated"][acting] | (following == following[:, -1:])  # a window that is padded ends early
    target = n_step(columns["reward"][acting], columns["terminated"][acting], cut, gamma)
    stack = _StackIndex(columns["is_first"][index], index, frame_stack)
    rows = {
        "observation": stack.at(np.full(len(index), first, dtype=np.int64)),
        "bootstrap_observation": stack.at(first + target.bootstrap_index),
    }
    rest = {
        "action": columns["action"][index[:, first]],
        "n_step_return": target.return_,
        "bootstrap_discount": target.discount,
        **{name: columns[name][index[:, first]] for name in extras},
    }
    if bootstrap_extras:
        newest = index[np.arange(len(index)), first + target.bootstrap_index]
        rest |= {f"bootstrap_{name}": columns[name][newest] for name in bootstrap_extras}
    if stack_on_device and OBSERVATION in columns:
        return {FRAMES: columns[OBSERVATION], **{ROWS[name]: found for name, found in rows.items()}, **rest}
    return {**{name: gather_observations(columns, found) for name, found in rows.items()}, **rest}


def pad_behind(index: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """Return windows whose first row stands at position `first` with its repetitions, if any, moved behind the last.

    Up to `first`, where the action is, the repeated row of a short item stands for missing history. Beyond it the item
    has fewer steps.

    Args:
        index: Rows of each window, a short one with its first row repeated in front, [B, L].
        first: Position of the first action.
    """
    short = np.flatnonzero(index[:, first] == index[:, first + 1])
    if not len(short):
        return index
    padded, places = index[short], np.arange(index.shape[1])
    excess = (padded[:, first + 1 :] == padded[:, first : first + 1]).sum(axis=1)
    source = np.where(places < first, places, np.minimum(places + excess[:, None], places[-1]))
    moved = index.copy()
    moved[short] = np.take_along_axis(padded, source, axis=1)
    return moved


def unrolled_transitions(
    columns: Mapping[str, Array],
    index: NDArray[np.int64],
    frame_stack: int,
    steps: int,
    gamma: float,
    *,
    extras: Sequence[str] = (),
) -> dict[str, Array]:
    """Return the steps of a batch of windows one by one, for returns that correct each of them (Retrace, V-trace).

    Args:
        columns: As of `transitions`.
        index: As of `transitions`, [B, frame_stack + steps].
        frame_stack: Observations the network sees at once.
        steps: n, the transitions of a window.
        gamma: Discount of one step.
        extras: Columns of the algorithm's own to return as well, each [R, ...].

    Returns:
        Of all n + 1 steps `observation`, `action` and each of `extras`, [B, n + 1, ...], observations with the axis of
        their stack if `frame_stack` > 1. Of the n transitions `reward` and `discount`, gamma * (1 - terminated),
        float32 [B, n], and `continues`, bool [B, n]: whether the next step's action was taken in the same episode.
        Where it is not, what comes after belongs to another episode, except the next observation if the step was
        truncated.
    """
    assert index.shape == (len(index), frame_stack + steps), f"index {index.shape} must be [B, stack + steps]"
    acting, batch = index[:, frame_stack - 1 :], len(index)
    stack = _StackIndex(columns["is_first"][index], index, frame_stack)
    rows = np.stack([stack.at(np.full(batch, frame_stack - 1 + step, np.int64)) for step in range(steps + 1)], axis=1)
    transition = acting[:, :-1]
    terminated, truncated = columns["terminated"][transition], columns["truncated"][transition]
    return {
        "observation": gather_observations(columns, rows),
        "action": columns["action"][acting],
        "reward": columns["reward"][transition],
        "discount": (gamma * ~terminated).astype(np.float32),
        "continues": ~(terminated | truncated),
        **{name: columns[name][acting] for name in extras},
    }


class _StackIndex:
    """Finds the rows of the stack that the environment showed at a position of each window."""

    def __init__(self, is_first: NDArray[np.bool_], index: NDArray[np.int64], frame_stack: int) -> None:
        self._index = index
        self._frame_stack = frame_stack
        if frame_stack > 1:
            positions = np.where(is_first, np.arange(index.shape[1]), 0)
            self._episode_start = np.maximum.accumulate(positions, axis=1)  # [B, L], 0 if before the window

    def at(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows [B, frame_stack], oldest first, or [B] without a stack, of `position` [B]."""
        items = np.arange(len(self._index))
        rows: NDArray[np.int64]
        if self._frame_stack == 1:
            rows = self._index[items, position]
            return rows
        oldest = position[:, None] + np.arange(1 - self._frame_stack, 1)  # [B, stack]
        # frames from before the episode become its first observation, as gymnasium's "reset" padding
        clamped = np.maximum(oldest, self._episode_start[items, position][:, None])
        rows = self._index[items[:, None], clamped]
        return rows


def gather_frame_stacks(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a batch with its `observation` and `bootstrap_observation`, gathered from `FRAMES` if they are not there.

    Args:
        batch: What `tidemill.rl.transitions.transitions` returned, with or without `stack_on_device`.
    """
    if FRAMES not in batch:
        return batch
    frames = batch[FRAMES]
    kept = {name: column for name, column in batch.items() if name != FRAMES and name not in ROWS.values()}
    return kept | {name: frames[batch[rows]] for name, rows in ROWS.items()}
