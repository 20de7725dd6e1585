"""Stacks put together later, on the device, against those put together at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.rl.streams import StreamBuilder, window_rows
from tidemill.rl.stacks import with_stacks
from tidemill.rl.windows import FRAMES, transitions


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
    later = transitions(stream.columns, index, frame_stack, 3, 0.9, stack_later=True)
    assert later[FRAMES] is stream.columns["observation"]
    assert "observation" not in later
    batch = with_stacks({name: torch.from_numpy(column) for name, column in later.items()})
    assert batch.keys() == at_once.keys()
    for name, column in at_once.items():
        np.testing.assert_array_equal(batch[name].numpy(), column, err_msg=name)


def test_batch_with_its_observations_is_left_alone() -> None:
    """On a CPU the decoder threads have gathered already."""
    batch = {"observation": torch.zeros(2)}
    assert with_stacks(batch) is batch
