"""When a batch of steps is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.services.inference.batcher import Batcher


def _filled(*rows: int, max_rows: int = 8, max_wait_s: float = 2.0) -> Batcher[int]:
    batcher: Batcher[int] = Batcher(max_rows, max_wait_s)
    for number, count in enumerate(rows):
        batcher.add(number, count, now_s=10.0 + number)
    return batcher


def test_nothing_is_due_without_steps() -> None:
    """However late it is."""
    assert _filled().cause(1e9, actors=0) is None


def test_full_batch_goes_at_once() -> None:
    """Whoever else is connected; what does not fit waits for the next one."""
    batcher = _filled(4, 3, 2)
    assert batcher.cause(10.0, actors=9) == "full"
    assert [step for step, _ in batcher.take()] == [0, 1]
    assert batcher.cause(10.0, actors=9) is None
    assert len(batcher) == 1


def test_batch_with_the_step_of_every_actor_goes_at_once() -> None:
    """Nobody else could come."""
    batcher = _filled(1, 1)
    assert batcher.cause(11.0, actors=3) is None
    assert batcher.cause(11.0, actors=2) == "complete"


def test_batch_goes_when_its_oldest_step_has_waited() -> None:
    """From the moment the oldest came, not the newest."""
    batcher = _filled(1, 1)
    assert batcher.deadline_s() == 12.0
    assert batcher.cause(11.99, actors=3) is None
    assert batcher.cause(12.0, actors=3) == "deadline"
    assert batcher.take() == [(0, 10.0), (1, 11.0)]


def test_step_that_was_removed_waits_no_longer() -> None:
    """Its rows do not count either; one that was taken is gone already."""
    batcher = _filled(4, 3, 2)
    batcher.remove(1)
    assert batcher.cause(10.0, actors=9) is None
    assert [step for step, _ in batcher.take()] == [0, 2]
    batcher.remove(0)
    assert not len(batcher)


@given(st.lists(st.integers(1, 8), max_size=40))
def test_every_step_is_taken_once_in_order_and_no_batch_is_too_large(rows: list[int]) -> None:
    """Whatever sizes the steps have."""
    batcher, taken = _filled(*rows), []
    while len(batcher):
        batch = [step for step, _ in batcher.take()]
        assert sum(rows[step] for step in batch) <= 8
        taken += batch
    assert taken == list(range(len(rows)))
