"""The clock of a run in lock-step: calls wait for a step count, and are refused once it has passed."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.naming import naming
from tidemill.errors import FailedPrecondition
from tidemill.services.replay.admission import StepClock


async def test_calls_pass_in_the_order_of_their_counts() -> None:
    """Whatever the order in which they came, each passes when its count is reached and not before."""
    count, passed = 0, []
    clock = StepClock(lambda: count)

    async def call(at: int) -> None:
        await clock.reach(at)
        passed.append(at)

    waiting = [asyncio.create_task(call(at)) for at in (8, 4, 0)]
    await asyncio.sleep(0)
    assert passed == [0]
    for step in (4, 8):
        count = step
        clock.advanced()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert passed[-1] == step
    await asyncio.gather(*waiting)


async def test_count_that_has_passed_is_refused() -> None:
    """A call that comes too late, or is jumped over, is an error that says so."""
    count = 4
    clock = StepClock(lambda: count)
    with pytest.raises(FailedPrecondition, match=naming("at_step_count 3 4")):
        await clock.reach(3)
    late = asyncio.create_task(clock.reach(6))
    await asyncio.sleep(0)
    count = 7
    clock.advanced()
    with pytest.raises(FailedPrecondition, match=naming("at_step_count 6 7")):
        await late
