"""Windows of streams against a reading one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.rl.streams import FRAME, Stream, StreamBuilder, window_rows
from tidemill.replay.codec import window_index
from tidemill.rl.policy_io import FrameStack
from tidemill.rl.transitions import transitions

GAMMA = 0.9
ENDINGS = ["terminated", "truncated", "terminated_final"]

episodes = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(ENDINGS)), min_size=1, max_size=6)


def play(plan: list[tuple[int, str]], frame_stack: int, seed: int = 0) -> Stream:
    """Return the stream of the planned episodes."""
    builder = StreamBuilder(frame_stack, np.random.default_rng(seed))
    for length, ending in plan:
        builder.play(length, ending)
    return builder.build()


def read(stream: Stream, start: int, steps: int) -> tuple[float, float, int]:
    """Return return, discount and bootstrap row of the window at `start`, one step at a time."""
    total, discount = 0.0, 1.0
    for row in range(start, start + steps):
        total += discount * float(stream.columns["reward"][row])
        discount *= GAMMA
        if stream.columns["terminated"][row]:
            return total, 0.0, row + 1
        if stream.columns["truncated"][row]:
            return total, discount, row + 1
    return total, discount, start + steps


@settings(max_examples=200, deadline=None)
@given(plan=episodes, frame_stack=st.integers(1, 4), steps=st.integers(1, 5), seed=st.integers(0, 1000))
def test_transitions_of_every_window_equal_a_reading_step_by_step(
    plan: list[tuple[int, str]], frame_stack: int, steps: int, seed: int
) -> None:
    """Wherever an item may start, its stacks, action, return and discount are those the environment showed."""
    stream = play(plan, frame_stack, seed)
    rows = len(stream.final)
    starts = [row for row in range(rows - steps) if not stream.final[row]]
    if not starts:
        return
    index = np.array([window_rows(start, frame_stack, steps) for start in starts])
    batch = transitions(stream.columns, index, frame_stack, steps, GAMMA)
    for item, start in enumerate(starts):
        total, discount, bootstrap = read(stream, start, steps)
        np.testing.assert_array_equal(stacked(batch["observation"][item], frame_stack), stream.stacks[start])
        assert batch["action"][item] == stream.columns["action"][start]
        np.testing.assert_allclose(batch["n_step_return"][item], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch["bootstrap_discount"][item], discount, rtol=1e-6)
        if discount:  # after termination the observation means nothing
            shown = stacked(batch["bootstrap_observation"][item], frame_stack)
            np.testing.assert_array_equal(shown, stream.stacks[bootstrap])


@settings(max_examples=100, deadline=None)
@given(plan=episodes, steps=st.integers(1, 5), seed=st.integers(0, 1000))
def test_shorter_item_is_a_return_of_fewer_steps(plan: list[tuple[int, str]], steps: int, seed: int) -> None:
    """The first row, which is repeated in front, counts once, and the sum ends with the item's last row."""
    stream = play(plan, 1, seed)
    rows = len(stream.final)
    found = [
        (start, length)
        for start in range(rows)
        for length in range(2, min(steps + 1, rows - start) + 1)
        if not stream.final[start]
    ]
    if not found:
        return
    starts, lengths = np.array(found).T
    index = window_index(starts, lengths, steps + 1, rows)
    batch = transitions(stream.columns, index, 1, steps, GAMMA)
    for item, (start, length) in enumerate(found):
        total, discount, bootstrap = read(stream, start, length - 1)
        np.testing.assert_array_equal(batch["observation"][item], stream.columns["observation"][start])
        assert batch["action"][item] == stream.columns["action"][start]
        np.testing.assert_allclose(batch["n_step_return"][item], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch["bootstrap_discount"][item], discount, rtol=1e-6)
        if discount:
            shown = batch["bootstrap_observation"][item]
            np.testing.assert_array_equal(shown, stream.columns["observation"][bootstrap])


def stacked(observation: NDArray[np.uint8], frame_stack: int) -> NDArray[np.uint8]:
    """Return an observation with its stack axis, which a stack of 1 does not have."""
    return observation[None] if frame_stack == 1 else observation


@settings(max_examples=100, deadline=None)
@given(plan=episodes, frame_stack=st.integers(1, 4), seed=st.integers(0, 1000))
def test_frame_stack_of_an_actor_equals_the_learners(plan: list[tuple[int, str]], frame_stack: int, seed: int) -> None:
    """The stack a policy acts on is bit-equal to the one the learner rebuilds, at every row of a stream."""
    stream = play(plan, frame_stack, seed)
    stacker = FrameStack(1, frame_stack, FRAME)
    steps = 1
    for row in range(len(stream.final)):
        shown = stacker.push(stream.columns["observation"][row : row + 1], stream.columns["is_first"][row : row + 1])
        np.testing.assert_array_equal(stacked(shown[0], frame_stack), stream.stacks[row])
        if row + steps < len(stream.final):
            index = np.array([window_rows(row, frame_stack, steps)])
            batch = transitions(stream.columns, index, frame_stack, steps, GAMMA)
            np.testing.assert_array_equal(batch["observation"], shown)


@pytest.mark.parametrize(
    "start,shown",
    [
        (0, [0, 0, 0]),  # the stream's very first row
        (1, [0, 0, 1]),
        (2, [0, 1, 2]),
        (4, [4, 4, 4]),  # the next episode's first row
        (5, [4, 4, 5]),
        (6, [4, 5, 6]),
    ],
)
def test_stack_at_a_border_repeats_the_episodes_first_frame(start: int, shown: list[int]) -> None:
    """Three rows, a final observation step, then the next episode: no stack ever mixes the two."""
    stream = play([(3, "truncated"), (4, "terminated")], frame_stack=3)
    index = np.array([window_rows(start, 3, 1)])
    batch = transitions(stream.columns, index, 3, 1, GAMMA)
    np.testing.assert_array_equal(batch["observation"][0], stream.columns["observation"][shown])


def test_truncated_window_bootstraps_from_the_final_rows_stack() -> None:
    """The final observation step continues the episode's stack: frames 1, 2 and the final 3."""
    stream = play([(3, "truncated"), (4, "terminated")], frame_stack=3)
    batch = transitions(stream.columns, np.array([window_rows(1, 3, 4)]), 3, 4, GAMMA)
    np.testing.assert_array_equal(batch["bootstrap_observation"][0], stream.columns["observation"][[1, 2, 3]])
    assert batch["bootstrap_discount"][0] == np.float32(GAMMA**2)


def test_index_of_another_length_is_refused() -> None:
    """A window of history 2 and 1 step has 4 rows, not 3."""
    stream = play([(3, "truncated")], frame_stack=3)
    with pytest.raises(AssertionError, match="must be"):
        transitions(stream.columns, np.zeros((1, 3), dtype=np.int64), 3, 1, GAMMA)


def test_continuous_actions_and_vector_observations_keep_their_shapes() -> None:
    """[R, 8] observations and [R, 2] actions become [B, 8] and [B, 2], without a stack axis."""
    flags = np.zeros(5, dtype=bool)
    columns = {
        "observation": np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32),
        "action": np.zeros((5, 2), dtype=np.float32),
        "reward": np.ones(5, dtype=np.float32),
        "terminated": flags,
        "truncated": flags,
        "is_first": flags,
    }
    batch = transitions(columns, np.array([[0, 1], [2, 3]]), 1, 1, GAMMA)
    assert batch["observation"].shape == batch["bootstrap_observation"].shape == (2, 8)
    assert batch["action"].shape == (2, 2)
    np.testing.assert_array_equal(batch["bootstrap_observation"], columns["observation"][[1, 3]])
