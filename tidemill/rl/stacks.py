"""Stacks of frames put together on the device that the network is on.

A frame belongs to as many stacks as it is deep, and to those of neighbouring items besides. To a GPU it travels once
and is copied there, where memory is fast; on a CPU the decoder threads copy it, beside the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tidemill.rl.windows import FRAMES, ROWS


def with_stacks(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a batch with its `observation` and `bootstrap_observation`, gathered from `FRAMES` if they are not there.

    Args:
        batch: What `tidemill.rl.windows.transitions` returned, with or without `stack_later`.
    """
    if FRAMES not in batch:
        return batch
    frames = batch[FRAMES]
    kept = {name: column for name, column in batch.items() if name != FRAMES and name not in ROWS.values()}
    return kept | {name: frames[batch[rows]] for name, rows in ROWS.items()}
