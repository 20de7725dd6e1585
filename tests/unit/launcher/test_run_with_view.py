"""Events that a run's view shows of its learner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.services.launcher.commands.train import run_with_view
from tidemill.services.launcher.view.status import ClusterStatus


class _Run:
    """A run that has the statuses given, one at each poll, and ends after them: runner, poller, curves and view."""

    def __init__(
        self, learners: list[LearnerStatus], restored: list[str] | None = None, failures: list[str] | None = None
    ) -> None:
        self._learners, self._is_over, self.events = learners, asyncio.Event(), list[str]()
        self._restored, self._failures = restored or [], failures or []

    async def run(self) -> None:
        """Run until every status was shown."""
        await self._is_over.wait()

    def poll(self) -> ClusterStatus:
        """Return the next status, and the last one again and again."""
        learner = self._learners.pop(0) if len(self._learners) > 1 else self._learners[0]
        return ClusterStatus(0.0, (), learner)

    def take_restored(self) -> str:
        """Return the words of the next start of the learner."""
        return self._restored.pop(0) if self._restored else ""

    def take_rank_failure(self) -> str:
        """Return the words of the next failure of a rank."""
        return self._failures.pop(0) if self._failures else ""

    def add(self, status: ClusterStatus) -> None:
        """Take no point."""

    def show(self, status: ClusterStatus) -> None:
        """End the run with the last status."""
        if len(self._learners) == 1:
            self._is_over.set()

    def event(self, message: str) -> None:
        """Record an event."""
        self.events.append(message)


@pytest.mark.parametrize("restored, told", [("", 1), ("checkpoint of 900 updates", 0)])
def test_learner_that_was_killed_before_its_first_checkpoint_is_said_to_start_from_scratch(
    restored: str, told: int
) -> None:
    """Once, as scores fall back. Not one that restored a checkpoint, nor one that starts and may restore one yet."""
    training = LearnerState.TRAINING
    statuses = [LearnerStatus(training, n, restored=r) for n, r in ((900, ""), (10, restored), (20, restored))]
    run: Any = _Run([statuses[0], LearnerStatus(LearnerState.STARTING), *statuses[1:]])
    asyncio.run(run_with_view(run, run, run, run, run, 0.0))
    assert len(run.events) == told
    assert all("from scratch" in event and "learner.checkpoint_every_s" in event for event in run.events)


def test_every_start_of_a_learner_is_told_with_what_it_restored() -> None:
    """Two restarts from one checkpoint, with a full table, are two lines; a view between them adds none."""
    same = "checkpoint-000001-00000002: 900 updates"
    run: Any = _Run([LearnerStatus(LearnerState.TRAINING, 900, restored=same)] * 5, [same, "", same])
    asyncio.run(run_with_view(run, run, run, run, run, 0.0))
    assert run.events == [f"learner restored {same}"] * 2


def test_lost_rank_is_told_before_what_the_learners_restored() -> None:
    """It is why they started again."""
    lost, restored = "lost rank 1, which ended with exit code -9", "checkpoint-000001-00000002: 900 updates"
    run: Any = _Run([LearnerStatus(LearnerState.TRAINING, 900, restored=restored)] * 3, [restored], [lost])
    asyncio.run(run_with_view(run, run, run, run, run, 0.0))
    assert run.events == [f"learner {lost}", f"learner restored {restored}"]
