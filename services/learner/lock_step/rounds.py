"""Rounds of a learner in lock-step: when it draws batches, and how it ends a round."""

from __future__ import annotations

from tidemill.config.lock_step import LockStep
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.schedule import SeededDraw
from tidemill.services.learner.lock_step.priorities import RoundPriorities
from tidemill.services.learner.training.trainer import TrainerOutputs

_NUMBER_BITS = 40  # of a draw's seed; those above are of the run's


def batches_per_draw(most: int, lock_step: LockStep) -> int:
    """Return how many batches a sample call draws: as many as divide the updates of a round, up to `most`."""
    return max(count for count in range(1, most + 1) if lock_step.updates % count == 0)


class DrawSchedule:
    """Schedule of a run's samples: when each is drawn, and with which seed."""

    def __init__(self, lock_step: LockStep, run_seed: int, batches: int) -> None:
        """Take the rounds, the run's seed, and how many batches a sample has, which divides those of a round."""
        self._lock_step, self._run_seed, self._batches = lock_step, run_seed, batches

    def draw(self, number: int) -> SeededDraw:
        """Return the draw of sample `number`, counted from 0."""
        seed = (self._run_seed % 2 ** (64 - _NUMBER_BITS)) << _NUMBER_BITS | number
        round_number = self._lock_step.round_of_update(number * self._batches)
        return SeededDraw(seed, round_number * self._lock_step.round_size)


class RoundPublisher:
    """Ends a round: a checkpoint first, then new priorities, then parameters.

    The order makes every part repeatable. Actors store the next round only after these parameters, so a learner that
    dies before the checkpoint repeats the round on a table that has not changed; one that dies later resumes behind it.
    """

    def __init__(
        self,
        outputs: TrainerOutputs,
        priorities: RoundPriorities | None,
        replay: ReplayClient,
    ) -> None:
        """Take the parts.

        Args:
            outputs: Of the only rank: what publishes parameters and what writes checkpoints.
            priorities: Of the rounds; None for a table without them.
            replay: Takes them.
        """
        assert outputs.publisher is not None
        assert outputs.checkpointer is not None
        self._publisher, self._checkpointer, self._priorities = outputs.publisher, outputs.checkpointer, priorities
        self._replay = replay

    @property
    def version(self) -> int:
        """Newest version that was acknowledged; 0 before the first."""
        return self._publisher.version

    def publish(self) -> None:
        """End the round.

        Raises:
            FatalError: The checkpoint could not be written.
            StalePublisher: A newer learner took over.
        """
        self._publisher.check()
        if self._priorities is not None:
            self._priorities.end_round()
        self._checkpointer.write_now()
        if self._priorities is not None:
            self._priorities.deliver(self._replay)
        self._publisher.publish()

    def check(self) -> None:
        """Raise the error that ended publishing."""
        self._publisher.check()
