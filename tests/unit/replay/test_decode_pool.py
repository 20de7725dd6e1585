"""Batches between the decoding threads and the training thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.raw_samples import sample
from tests.support.waiting import wait_until
from tidemill.errors import AlreadyExists
from tidemill.replay.batch import SampledBatch
from tidemill.replay.sampling import table_feed
from tidemill.replay.sampling.table_feed import DecodePool

_WAIT_S = 120.0


class _Samples:
    """A source the test fills."""

    def __init__(self) -> None:
        self.queue: queue.Queue[SampledBatch | Exception] = queue.Queue()
        self.received: list[int] = []

    def take(self, timeout_s: float) -> SampledBatch | None:
        try:
            found = self.queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        self.received.append(found.env_steps)
        return found


def _decode(found: SampledBatch) -> list[int]:
    """Return one batch an item: its key."""
    return [int(key) for key in found.keys]


_Pool = DecodePool[SampledBatch, int]
_Make = Callable[..., _Pool]


@pytest.fixture
def samples() -> _Samples:
    """An empty source."""
    return _Samples()


@pytest.fixture
def make(samples: _Samples) -> Iterator[_Make]:
    """Make queues over the source; closed at the end."""
    made: list[_Pool] = []

    def build(*, decode: Callable[[SampledBatch], list[int]] = _decode, threads: int = 1) -> _Pool:
        made.append(DecodePool(samples.take, decode, threads=threads, prefetch_samples=1))
        return made[-1]

    yield build
    for each in made:
        each.close()


def test_batches_of_samples_come_in_order(samples: _Samples, make: _Make) -> None:
    """The batches of one sample are taken together, then those of the next."""
    samples.queue.put(sample([0.0, 0.0], first_key=1))
    samples.queue.put(sample([0.0], first_key=7))
    batches = make()
    assert [batches.take(_WAIT_S) for _ in range(2)] == [[1, 2], [7]]


def test_take_without_data_returns_none(make: _Make) -> None:
    """Both without waiting and after a bounded wait."""
    batches = make()
    assert batches.take(0.0) is None
    assert batches.take(0.05) is None


def test_samples_are_not_taken_without_end(samples: _Samples, make: _Make) -> None:
    """One sample ready and one in the thread's hand, so that priorities do not grow old in a queue."""
    for number in range(20):
        samples.queue.put(sample([0.0], first_key=number + 1))
    decoded: queue.Queue[int] = queue.Queue()

    def decode(found: SampledBatch) -> list[int]:
        decoded.put(int(found.keys[0]))
        return _decode(found)

    batches = make(decode=decode)
    assert [decoded.get(timeout=_WAIT_S) for _ in range(2)] == [1, 2]
    with pytest.raises(queue.Empty):
        decoded.get(timeout=0.1)
    assert batches.take(_WAIT_S) == [1]
    assert decoded.get(timeout=_WAIT_S) == 3


def test_fault_in_a_thread_is_raised_in_the_training_thread(samples: _Samples, make: _Make) -> None:
    """After the batches that were ready, the reason comes out of `take`."""
    samples.queue.put(sample([0.0]))
    samples.queue.put(AlreadyExists("table 'replay' has another configuration"))
    batches = make()
    assert batches.take(_WAIT_S) == [1]
    with pytest.raises(AlreadyExists, match="another configuration"):
        wait_until(lambda: batches.take(0.01), "the reason")


def test_fault_of_one_of_two_threads_ends_both(samples: _Samples, make: _Make) -> None:
    """The other one does not hide the reason behind batches without end."""
    for number in range(50):
        samples.queue.put(sample([0.0], first_key=number + 1))

    def decode(found: SampledBatch) -> list[int]:
        if found.keys[0] == 2:
            raise ValueError("cannot be decoded")
        return _decode(found)

    batches = make(decode=decode, threads=2)
    with pytest.raises(ValueError, match="cannot be decoded"):
        [batches.take(1.0) for _ in range(20)]


def test_samples_are_received_in_order_by_many_threads(samples: _Samples, make: _Make) -> None:
    """What they say of the server, such as its count of agent decisions, is seen in the order in which it was said."""
    for count in range(1, 201):
        samples.queue.put(sample([0.0], env_steps=count))
    batches = make(threads=4)
    taken = sum(batches.take(_WAIT_S) is not None for _ in range(200))
    assert (taken, samples.received) == (200, list(range(1, 201)))


def test_close_ends_threads(samples: _Samples, make: _Make) -> None:
    """Even a thread that holds a batch nobody takes ends."""
    for number in range(5):
        samples.queue.put(sample([0.0], first_key=number + 1))
    before = set(threading.enumerate())
    batches = make(threads=2)
    assert batches.take(_WAIT_S) is not None
    batches.close()
    batches.close()
    assert set(threading.enumerate()) <= before


def test_close_wakes_a_thread_that_holds_a_batch(
    samples: _Samples, make: _Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the thread to look whether the pool is closed."""
    monkeypatch.setattr(table_feed, "_POLL_S", 60.0)
    for number in range(2):
        samples.queue.put(sample([0.0], first_key=number + 1))
    before = set(threading.enumerate())
    batches = make()
    wait_until(lambda: len(samples.received) == 2, "a batch that has no room")
    batches.close()
    assert set(threading.enumerate()) <= before
