"""Snapshots of training kept for a verdict that comes later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tidemill.services.learner import rollback
from tidemill.services.learner.checkpoint.resume import LearnerSnapshot
from tidemill.services.learner.rollback import SnapshotHistory


def _snapshots(size_bytes: int) -> tuple[Callable[[], LearnerSnapshot], Callable[[int], None]]:
    """Return a function that takes a snapshot of a size, and one that sets the number of steps it is taken at."""
    steps = 0

    def take() -> LearnerSnapshot:
        return LearnerSnapshot({"learner_steps": steps}, {"weight": torch.zeros(size_bytes // 4)}, {})

    def move(to: int) -> None:
        nonlocal steps
        steps = to

    return take, move


def _kept(history: SnapshotHistory, numbers: range) -> list[int]:
    return [number for number in numbers if history.find(number) is not None]


def test_newest_states_are_kept_within_their_memory() -> None:
    """Of states of 1,000 bytes 4,000 bytes hold four, and a state that is no longer among them is gone."""
    take, move = _snapshots(1_000)
    history = SnapshotHistory(take, max_bytes=4_000)
    for steps in range(10):
        move(steps)
        history.add(None)
    assert _kept(history, range(10)) == [6, 7, 8, 9]


@pytest.mark.parametrize("size_bytes, kept", [(2 * rollback.MAX_BYTES, 2), (4, 64)])
def test_number_of_kept_states_has_bounds(size_bytes: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of those that are too large for the memory, 64 of the smallest."""
    monkeypatch.setattr(LearnerSnapshot, "size_bytes", size_bytes)
    take, move = _snapshots(4)
    history = SnapshotHistory(take)
    for steps in range(100):
        move(steps)
        history.add(None)
    assert _kept(history, range(100)) == list(range(100 - kept, 100))


def test_state_under_evaluation_outlives_newer_ones() -> None:
    """However many versions are published meanwhile; it goes when another one is under evaluation."""
    take, move = _snapshots(1_000)
    history = SnapshotHistory(take, max_bytes=2_000)
    for steps in range(10):
        move(steps)
        history.add(3 if steps > 3 else None)
    assert _kept(history, range(10)) == [3, 8, 9]
    move(10)
    history.add(9)
    assert _kept(history, range(11)) == [8, 9, 10]
