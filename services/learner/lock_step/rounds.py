"""When a learner in lock-step draws what."""

from __future__ import annotations

from tidemill.config.lock_step import LockStep
from tidemill.replay.sampling.seeded_stream import SeededDraw

_NUMBER_BITS = 40  # of a draw's seed; those above are of the run's


def batches_per_draw(most: int, lock_step: LockStep) -> int:
    """Return how many batches a sample call draws: as many as divide the gradient steps of a round, up to `most`."""
    return max(count for count in range(1, most + 1) if lock_step.updates % count == 0)


class DrawSchedule:
    """When each sample of a run is drawn, and by which seed."""

    def __init__(self, lock_step: LockStep, run_seed: int, batches: int) -> None:
        """Take the rounds, the run's seed, and how many batches a sample has, which divides those of a round."""
        self._lock_step, self._run_seed, self._batches = lock_step, run_seed, batches

    def draw(self, number: int) -> SeededDraw:
        """Return the draw of sample `number`, counted from 0."""
        seed = (self._run_seed % 2 ** (64 - _NUMBER_BITS)) << _NUMBER_BITS | number
        round_number = self._lock_step.round_of_update(number * self._batches)
        return SeededDraw(seed, round_number * self._lock_step.round_size)
