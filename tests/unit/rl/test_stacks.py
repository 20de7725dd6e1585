"""Stacks put together later, on the device, against those put together at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.rl.streams import StreamBuilder, window_rows
from tidemill.rl.policy_io import FrameStack
from tidemill.rl.transitions import FRAMES, gather_frame_stacks, transitions


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_stacks_gathered_later_are_those_gathered_at_once(frame_stack: int) -> None:
    """Over episode borders and the stream's start, every column of the batch is the same."""
    builder = StreamBuilder(frame_stack, np.random.default_rng(1))
    for length, ending in ((6, "terminated"), (2, "truncated"), (9, "terminated")):
        builder.play(length, ending)
    stream = builder.build()
    starts = [row for row in range(len(stream.final) - 3) if not stream.final[row]]
    index = np.array([window_rows(start, frame_stack, 3) for start in starts])
    at_once = transitions(stream.columns, index, frame_stack, 3, 0.9)
    later = transitions(stream.columns, index, frame_stack, 3, 0.9, stack_on_device=True)
    assert later[FRAMES] is stream.columns["observation"]
    assert "observation" not in later
    batch = gather_frame_stacks({name: torch.from_numpy(column) for name, column in later.items()})
    assert batch.keys() == at_once.keys()
    for name, column in at_once.items():
        np.testing.assert_array_equal(batch[name].numpy(), column, err_msg=name)


def test_batch_with_its_observations_is_left_alone() -> None:
    """On a CPU the decoder threads have gathered already."""
    batch = {"observation": torch.zeros(2)}
    assert gather_frame_stacks(batch) is batch


def test_actors_stack_of_gray_images_lies_channels_last() -> None:
    """A pixel's four frames lie side by side, oldest first; floats and colours lie frame after frame."""
    stack = FrameStack(2, 4, (3, 5))
    shown = [stack.push(np.full((2, 3, 5), step, np.uint8), np.full(2, step == 0)) for step in range(3)][-1]
    assert shown.strides == (60, 1, 20, 4)
    np.testing.assert_array_equal(shown[1, :, 2, 4], [0, 0, 1, 2])
    for shape, dtype in (((3, 5), np.float32), ((3, 5, 3), np.uint8)):
        shown = FrameStack(2, 4, shape, dtype).push(np.ones((2, *shape), dtype), np.ones(2, np.bool_))
        assert shown.flags.c_contiguous
