"""The logical clock of a run in lock-step: how many steps the streams of all actors have together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.errors import FailedPrecondition


class StepClock:
    """Lets calls wait until a step count is reached, which appends move on."""

    def __init__(self, count: Callable[[], int]) -> None:
        """Take what counts the steps; every append must be followed by `advanced`."""
        self._count = count
        self._advanced = asyncio.Event()
        self._waiting = 0

    async def reach(self, steps: int) -> None:
        """Wait until there are exactly so many steps.

        Raises:
            FailedPrecondition: There are more: what was to happen then cannot happen any more.
        """
        self._waiting += 1
        try:
            while self._count() < steps:
                await self._advanced.wait()
        finally:
            self._waiting -= 1
        if (count := self._count()) > steps:
            raise FailedPrecondition(
                f"at_step_count is {steps}, but the streams have {count} steps: the processes of a run in lock-step "
                "are not at the same round; start the run from scratch"
            )

    def advanced(self) -> None:
        """Have every waiting call look at the count again."""
        if self._waiting:
            self._advanced.set()
            self._advanced = asyncio.Event()
