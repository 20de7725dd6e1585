"""The sender of priorities: it never makes its caller wait."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.replay.sampling.priorities import PriorityMessages, PrioritySender

KEYS = np.array([1, 2], np.uint64)


class _Table:
    """Remembers priorities; can fail or hold them."""

    def __init__(self) -> None:
        self.found: list[list[float]] = []
        self.fault: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(
        self, keys: NDArray[np.uint64], priorities: NDArray[np.float64], *, deadline_s: float | None = None
    ) -> None:
        assert self.may_answer.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        assert len(keys) == len(priorities)
        self.found.append(priorities.tolist())


def test_each_table_gets_its_own_in_order() -> None:
    """Arrays are copied when they are handed over; a function is called when they are sent."""
    tables = [_Table(), _Table()]
    sender, values = PrioritySender(list(tables)), np.array([1.0, 2.0])
    sender.send(KEYS, values, table=0)
    values[:] = 0.0
    sender.send(KEYS, [3, 4], table=1)
    sender.send(KEYS, lambda: [5.0, 6.0], table=0)
    sender.close()
    sender.close()
    assert [table.found for table in tables] == [[[1.0, 2.0], [5.0, 6.0]], [[3.0, 4.0]]]
    assert sender.dropped == 0


def test_table_is_named_where_there_are_several() -> None:
    """Keys of the others are unknown to the first one, which would skip them uncounted."""
    tables = [_Table(), _Table()]
    sender = PrioritySender(list(tables))
    wanted = naming("table None 0 1 `batch.tables`")
    with pytest.raises(InvalidArgument, match=wanted):
        sender.send(KEYS, [1.0, 1.0])
    with pytest.raises(InvalidArgument, match=wanted):
        sender.store(KEYS, np.ones(2))
    sender.close()
    assert [table.found for table in tables] == [[], []]


def test_what_cannot_be_delivered_is_counted() -> None:
    """A table that is lost, and one that does not answer: what is beyond the queue is dropped, newest first."""
    table = _Table()
    table.fault = NotFound("no table")
    sender = PrioritySender([table])
    sender.send(KEYS, [1.0, 1.0])
    wait_until(lambda: sender.dropped == 2, "the first to be dropped")
    table.fault = None
    table.may_answer.clear()
    for value in range(100):
        sender.send(KEYS, [value, value])
    table.may_answer.set()
    sender.close()
    assert table.found[0] == [0.0, 0.0]
    assert sender.dropped == 202 - 2 * len(table.found)
    assert 8 <= len(table.found) <= 10


def test_what_is_queued_when_closing_gives_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table does not answer: the message that is under way is neither delivered nor dropped yet."""
    monkeypatch.setattr("tidemill.replay.sampling.priorities._STOP_S", 0.05)
    table = _Table()
    table.may_answer.clear()
    sender = PrioritySender([table])
    for value in range(4):
        sender.send(KEYS, [value, value])
    wait_until(lambda: sender._queue.qsize() == 3, "the first to be under way")
    sender.close()
    assert sender.dropped == 6
    table.may_answer.set()
    wait_until(lambda: not sender._thread or not sender._thread.is_alive(), "the thread to end")
    assert table.found == [[0.0, 0.0]]


def test_priorities_without_a_thread_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """None can be started, as where there are too many; the next priorities try again."""
    table = _Table()
    sender = PrioritySender([table])
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        sender.send(KEYS, [1.0, 1.0])
    sender.send(KEYS, [2.0, 2.0])
    sender.close()
    assert (sender.dropped, table.found) == (2, [[2.0, 2.0]])


@pytest.mark.parametrize("updates", [1, 3])
def test_priorities_that_come_after_the_end_are_counted(updates: int) -> None:
    """Those of a thread that another one's `close` overtook, at once, also if they would wait for more."""
    table = _Table()
    sender = PrioritySender([table], PriorityMessages(updates=updates))
    sender.send(KEYS, [1.0, 1.0])
    sender.close()
    sender.send(KEYS, [2.0, 2.0])
    assert (sender.dropped, table.found) == (2, [[1.0, 1.0]])


def test_refusal_is_raised_by_the_next_call() -> None:
    """An error that a retry does not cure does not stay in the background."""
    table = _Table()
    table.fault = InvalidArgument("priority is negative")
    sender = PrioritySender([table])
    sender.send(KEYS, [-1.0, 1.0])
    with pytest.raises(InvalidArgument, match="negative"):
        wait_until(lambda: sender.send(KEYS, [1.0, 1.0]), "the reason")
    sender.close()


def test_count_of_priorities_is_checked() -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidArgument, match=naming("1 2")):
        PrioritySender([_Table()]).send(KEYS, [1.0])


def test_several_updates_make_a_message() -> None:
    """It leaves by itself once it is full, and what waits for more leaves with `flush`."""
    table = _Table()
    sender = PrioritySender([table], PriorityMessages(updates=3))
    for value in range(4):
        sender.send(KEYS, [value, value])
    wait_until(lambda: len(table.found) == 1, "the full message")
    sender.flush()
    sender.close()
    assert table.found == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0], [3.0, 3.0]]


def test_held_priorities_are_never_sent_by_themselves() -> None:
    """Neither by `flush` nor at the end: who holds them takes them, in order, and stores them."""
    table = _Table()
    sender = PrioritySender([table], PriorityMessages(hold=True))
    for value in range(3):
        sender.send(KEYS, [value, value])
    sender.flush()
    assert len(sender.held()) == 3
    held = sender.take_held()
    assert [update.priorities.tolist() for update in held] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert sender.held() == []
    sender.close()
    assert table.found == []


def test_stored_priorities_are_waited_for() -> None:
    """A server that is away is tried again until it has them, the time is over, or the sender is closed."""
    table = _Table()
    table.fault = Unavailable("away")
    sender = PrioritySender([table])
    with pytest.raises(Unavailable, match="away"):
        sender.store(KEYS, np.ones(2), timeout_s=0.0)
    ended: list[str] = []

    def store() -> None:
        try:
            sender.store(KEYS, np.ones(2))
            ended.append("stored")
        except FailedPrecondition:
            ended.append("closed")

    for end in ("stored", "closed"):
        waiting = threading.Thread(target=store)
        waiting.start()
        if end == "stored":
            table.fault = None
        else:
            sender.close()
        waiting.join(WAIT_S)
        assert ended.pop() == end
        table.fault = Unavailable("away")
    assert table.found == [[1.0, 1.0]]
