"""New priorities on their way to the table."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.waiting import wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, Unavailable
from tidemill.params.publisher import StalePublisher
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.services.learner.data.priorities import PriorityWriter
from tidemill.services.learner.divergence import Diverged

_WAIT_S = 120.0


class _Table:
    """Remembers messages; can fail or hold them."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[int], list[float]]] = []
        self.received = threading.Event()
        self.faults: list[Exception] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        assert self.may_answer.wait(_WAIT_S)
        if self.faults:
            raise self.faults.pop(0)
        self.messages.append((keys.tolist(), priorities.tolist()))
        self.received.set()


def _keys(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def test_updates_are_sent_together_in_order() -> None:
    """What was collected goes as one message, each priority a little above 0."""
    table = _Table()
    writer = PriorityWriter(PrioritySender([table]))
    writer.offer(_keys(1, 2), torch.tensor([0.5, 0.0]))
    writer.offer(_keys(2), torch.tensor([2.0]))
    assert table.messages == []
    writer.close()
    ((keys, priorities),) = table.messages
    assert keys == [1, 2, 2]
    assert priorities == [0.5 + SMALLEST_PRIORITY, SMALLEST_PRIORITY, 2.0 + SMALLEST_PRIORITY]


def test_sixteen_updates_make_a_message() -> None:
    """A message leaves by itself once it is worth its cost."""
    table = _Table()
    writer = PriorityWriter(PrioritySender([table]))
    for key in range(16):
        writer.offer(_keys(key), torch.ones(1))
    assert table.received.wait(_WAIT_S)
    assert table.messages[0][0] == list(range(16))
    writer.close()


def test_absent_service_costs_the_priorities_only() -> None:
    """What cannot be delivered is dropped; later priorities are sent again."""
    table = _Table()
    table.faults = [Unavailable("gone")]
    writer = PriorityWriter(PrioritySender([table]))
    writer.offer(_keys(1), torch.ones(1))
    writer.flush()
    writer.offer(_keys(2), torch.ones(1))
    writer.close()
    assert [keys for keys, _ in table.messages] == [[2]]


def test_frozen_service_never_blocks_the_training_thread() -> None:
    """Beyond the bound messages are dropped, newest first, and `offer` returns at once."""
    table = _Table()
    table.may_answer.clear()
    writer = PriorityWriter(PrioritySender([table]))
    for key in range(16 * 50):
        writer.offer(_keys(key), torch.ones(1))
    table.may_answer.set()
    writer.close()
    assert 8 <= len(table.messages) <= 10
    assert table.messages[0][0] == list(range(16))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_priority_that_is_not_finite_ends_training(value: float) -> None:
    """A diverged loss is raised in the training thread, in one line."""
    writer = PriorityWriter(PrioritySender([_Table()]))
    writer.offer(_keys(1), torch.tensor([value]))
    with pytest.raises(Diverged, match="priorities"):
        wait_until(writer.flush, "the reason")


def test_refused_priorities_are_raised_in_the_owner() -> None:
    """An error that a retry cannot cure does not stay in the background."""
    table = _Table()
    table.faults = [InvalidArgument("priority is negative")]
    writer = PriorityWriter(PrioritySender([table]))
    writer.offer(_keys(1), torch.ones(1))
    with pytest.raises(InvalidArgument, match="negative"):
        wait_until(writer.flush, "the reason")


def test_superseded_learner_ends() -> None:
    """The table refuses its fencing token, which ends the training thread."""
    table = _Table()
    table.faults = [FailedPrecondition("fencing token 1 was superseded by 2")]
    writer = PriorityWriter(PrioritySender([table]))
    writer.offer(_keys(1), torch.ones(1))
    with pytest.raises(StalePublisher, match="superseded by 2"):
        wait_until(writer.flush, "the reason")
