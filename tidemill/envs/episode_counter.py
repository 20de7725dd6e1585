"""Counts the raw returns and lengths of real episodes, whatever a training episode is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.envs.interface import EpisodeSummary


class EpisodeCounter:
    """The running return and length of the episode that each of N environments plays."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        """Sum of raw rewards so far, [N]."""
        self.lengths = np.zeros(num_envs, np.int64)
        """Agent decisions so far, [N]."""

    def clear(self) -> None:
        """Start new episodes everywhere."""
        self.returns[:] = 0
        self.lengths[:] = 0

    def add(self, raw_reward: NDArray[np.float64 | np.int32], is_reset_step: NDArray[np.bool_]) -> None:
        """Count one step: raw rewards [N], and True where the step was not a decision, bool [N]."""
        self.returns += raw_reward
        self.lengths += ~is_reset_step

    def forget(self, indices: Sequence[int]) -> None:
        """Start new episodes in some environments, without a summary of those under way."""
        self.returns[indices] = 0
        self.lengths[indices] = 0

    def finish(self, ended: NDArray[np.bool_], terminated: NDArray[np.bool_]) -> tuple[EpisodeSummary, ...]:
        """Return a summary of each episode that ended, bool [N], and start the next one there."""
        if not ended.any():
            return ()
        indices = np.flatnonzero(ended)
        summaries = tuple(
            EpisodeSummary(int(i), float(self.returns[i]), int(self.lengths[i]), bool(terminated[i])) for i in indices
        )
        self.returns[indices] = 0
        self.lengths[indices] = 0
        return summaries
