"""The stack of the newest observations that an acting policy sees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

_WORDS = {2: "<u2", 4: "<u4", 8: "<u8"}
"""Types of as many bytes as a stack has frames; the first byte is the lowest."""


class FrameStack:
    """Keeps the last `stack` observations of each environment.

    At an episode's first observation every frame of that environment becomes this observation, the padding
    that `tidemill.rl.windows.transitions` rebuilds in the learner.
    """

    def __init__(self, num_envs: int, stack: int, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> None:
        """Make an empty stack; the first `push` must be of first observations only.

        Gray images of bytes lie in memory with the frames of a pixel side by side, channels last, as convolutions
        read them fastest; a pixel's frames are then one word, and a shift drops the oldest.
        """
        assert min(num_envs, stack) >= 1, f"num_envs {num_envs} and stack {stack} must be at least 1"
        self._stack = stack
        self._words: Array | None = None
        if stack in _WORDS and len(shape) == 2 and np.dtype(dtype) == np.uint8:
            self._words = np.zeros((num_envs, *shape), dtype=_WORDS[stack])
            channels_last = self._words.view(np.uint8).reshape(num_envs, *shape, stack)
            self._frames: Array = np.moveaxis(channels_last, -1, 1)
        else:
            self._frames = np.zeros((num_envs, stack, *shape), dtype=dtype)

    def push(self, observation: Array, is_first: NDArray[np.bool_]) -> Array:
        """Add one observation of each environment and return what the policy sees.

        Args:
            observation: [N, *shape].
            is_first: Whether it is the first of its episode, [N].

        Returns:
            The stacks, oldest first, [N, stack, *shape], or `observation` itself if `stack` is 1. The array
            is this object's own and changes at the next `push`; it need not be contiguous.
        """
        if self._stack == 1:
            return observation
        if self._words is not None:
            np.right_shift(self._words, 8, out=self._words)
        else:
            self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = observation
        if is_first.any():
            self._frames[is_first] = observation[is_first][:, None]
        return self._frames
