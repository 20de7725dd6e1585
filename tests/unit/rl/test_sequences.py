"""Sequences for recurrent agents: what each row shows, what came before it and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.rl.streams import Stream, StreamBuilder
from tidemill.rl.sequences import SequenceShape, sequences

GAMMA = 0.9
SHAPE = SequenceShape(frame_stack=1, burn_in=2, unroll=4, n_step=3)


def stream_of(frame_stack: int, seed: int) -> Stream:
    """Return a stream of short episodes of every ending."""
    builder = StreamBuilder(frame_stack, np.random.default_rng(seed))
    for length, ending in ((5, "terminated"), (3, "truncated"), (1, "terminated_final"), (9, "truncated")):
        builder.play(length, ending)
    builder.play(30, "terminated")
    return builder.build()


def windows(shape: SequenceShape, count: int) -> NDArray[np.int64]:
    """Return the windows that start acting at rows 0, 1, .. of a stream; before it its first row repeats."""
    first = np.arange(count)[:, None] - shape.history
    rows: NDArray[np.int64] = np.maximum(first + np.arange(shape.history + shape.rows), 0)
    return rows


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_rows_show_what_the_environment_showed(frame_stack: int) -> None:
    """Stacks, episode starts, last actions and last rewards, row by row, across ends of every kind."""
    shape = SequenceShape(frame_stack, SHAPE.burn_in, SHAPE.unroll, SHAPE.n_step)
    stream, count = stream_of(frame_stack, 1), 18
    batch = sequences(stream.columns, windows(shape, count), shape, GAMMA)
    for start in range(count):
        for t in range(shape.rows):
            row = start + t
            seen = batch["observation"][start]
            shown = seen[batch["stack"][start, t]] if frame_stack > 1 else seen[t][None]
            np.testing.assert_array_equal(shown, stream.stacks[row])
            assert batch["is_first"][start, t] == stream.columns["is_first"][row]
            if not stream.columns["is_first"][row]:
                assert batch["last_action"][start, t] == stream.columns["action"][row - 1]
                assert batch["last_reward"][start, t] == stream.columns["reward"][row - 1]


def test_targets_end_with_the_episode_and_final_rows_are_left_out() -> None:
    """Each row of the unroll sums its own episode's rewards, and bootstraps from the row that follows them."""
    stream, count = stream_of(1, 2), 18
    columns = stream.columns
    batch = sequences(columns, windows(SHAPE, count), SHAPE, GAMMA)
    for start in range(count):
        for u in range(SHAPE.unroll):
            row = start + SHAPE.burn_in + u
            assert batch["action"][start, u] == columns["action"][row]
            assert batch["is_trained"][start, u] == (not stream.final[row])
            if stream.final[row]:
                continue
            total, k = 0.0, 0
            while k < SHAPE.n_step:
                total += GAMMA**k * columns["reward"][row + k]
                k += 1
                if columns["terminated"][row + k - 1] or columns["truncated"][row + k - 1]:
                    break
            ended = columns["terminated"][row + k - 1]
            assert batch["n_step_return"][start, u] == pytest.approx(total, rel=1e-5)
            assert batch["bootstrap_discount"][start, u] == pytest.approx(0.0 if ended else GAMMA**k)
            if not ended:
                assert batch["bootstrap"][start, u] == SHAPE.burn_in + u + k


def test_window_of_the_paper() -> None:
    """Burn-in 40, unroll 80, n 5, a start every 40: a row before, and 125 the network passes through."""
    shape = SequenceShape(frame_stack=4, burn_in=40, unroll=80, n_step=5)
    window = shape.window(stride=40)
    assert (window.history, window.length, window.stride) == (3, 3 + 125, 40)
    assert SequenceShape(1, 40, 80, 5).window(40).history == 1
