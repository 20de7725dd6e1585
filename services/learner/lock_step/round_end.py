"""What a learner in lock-step does at the end of a round."""

from __future__ import annotations

from tidemill.replay.client import ReplayClient
from tidemill.services.learner.lock_step.priorities import RoundPriorities
from tidemill.services.learner.trainer import TrainerOutputs


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
        fencing_token: int,
    ) -> None:
        """Take the parts.

        Args:
            outputs: Of the only rank: what publishes parameters and what writes checkpoints.
            priorities: Of the rounds; None for a table without them.
            replay: Takes them.
            fencing_token: Of this learner.
        """
        assert outputs.publisher is not None
        assert outputs.checkpointer is not None
        self._publisher, self._checkpointer, self._priorities = outputs.publisher, outputs.checkpointer, priorities
        self._replay, self._fencing_token = replay, fencing_token

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
            self._priorities.deliver(self._replay, self._fencing_token)
        self._publisher.publish()

    def check(self) -> None:
        """Raise the error that ended publishing."""
        self._publisher.check()
