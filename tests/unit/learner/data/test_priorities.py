"""Priorities of a learner on their way to the table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.waiting import wait_until
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.services.learner.data.dataset import BY_SIXTEEN
from tidemill.services.learner.status.divergence import Diverged

_WAIT_S = 120.0


class _Table:
    """Remembers messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[int], list[float]]] = []

    def __call__(
        self, keys: NDArray[np.uint64], priorities: NDArray[np.float64], *, deadline_s: float | None = None
    ) -> None:
        self.messages.append((keys.tolist(), priorities.tolist()))


def _keys(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def test_updates_are_sent_together_in_order() -> None:
    """What was collected goes as one message, each priority a little above 0."""
    table = _Table()
    sender = PrioritySender([table], BY_SIXTEEN)
    sender.send(_keys(1, 2), torch.tensor([0.5, 0.0]))
    sender.send(_keys(2), torch.tensor([2.0]))
    assert table.messages == []
    sender.close()
    ((keys, priorities),) = table.messages
    assert keys == [1, 2, 2]
    assert priorities == [0.5 + SMALLEST_PRIORITY, SMALLEST_PRIORITY, 2.0 + SMALLEST_PRIORITY]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_priority_that_is_not_finite_ends_training(value: float) -> None:
    """A diverged loss is raised in the training thread, in one line."""
    sender = PrioritySender([_Table()], BY_SIXTEEN)
    sender.send(_keys(1), torch.tensor([value]))
    with pytest.raises(Diverged, match="priorities"):
        wait_until(sender.flush, "the reason")


def test_close_survives_what_ended_the_thread() -> None:
    """Its owner has more to close, and was told by `check`; so it is whatever ended it."""

    def broken(keys: NDArray[np.uint64], priorities: NDArray[np.float64], *, deadline_s: float | None = None) -> None:
        raise ZeroDivisionError

    sender = PrioritySender([broken], BY_SIXTEEN)
    for key in range(16):
        sender.send(_keys(key), torch.ones(1))
    wait_until(lambda: sender._error is not None, "the thread to end", _WAIT_S)
    with pytest.raises(ZeroDivisionError):
        sender.check()
    sender.close()
    sender.close()
