"""What a replay server must offer for the conformance tests, in words that both Tidemill and Reverb have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from tests.support.waiting import wait_until

Column = NDArray[Any]

HELD_S = 0.4
"""How long something must not happen to count as held back, in seconds."""


@dataclass(frozen=True)
class Limiter:
    """A rate limiter by its published name: `min_size`, `ratio`, `queue` or `stack`.

    Attributes:
        kind: The name.
        size: `min_size_to_sample`, or the size of the queue or stack.
        samples_per_insert: Of `ratio`.
        error_buffer: Of `ratio`.
    """

    kind: str = "min_size"
    size: int = 1
    samples_per_insert: float = 0.0
    error_buffer: float = 0.0


@dataclass(frozen=True)
class Spec:
    """A table.

    Attributes:
        sampler: `uniform`, `prioritized`, `fifo`, `lifo`, `max_heap` or `min_heap`.
        remover: Likewise.
        max_size: Most items.
        limiter: Its rate limiter.
        max_times_sampled: An item is removed after so many samples; 0 means never.
        exponent: Of `prioritized`.
    """

    sampler: str = "fifo"
    remover: str = "fifo"
    max_size: int = 100
    limiter: Limiter = field(default_factory=Limiter)
    max_times_sampled: int = 0
    exponent: float = 1.0


@dataclass(frozen=True)
class Sampled:
    """One sampled item.

    Attributes:
        value: What was inserted, of its newest step.
        key: Names the item.
        probability: With which it was chosen.
        times_sampled: How often by now, this time included.
    """

    value: int
    key: int
    probability: float
    times_sampled: int


class TimedOut(Exception):
    """No sample came in time."""


class Server(Protocol):
    """A server with one table; each system implements it once."""

    def insert(self, value: int, priority: float = 1.0) -> None:
        """Begin to insert an item of one step; where the rate limiter holds it back it waits without blocking."""

    def sample(self, count: int = 1, timeout_s: float = 30.0) -> list[Sampled]:
        """Sample items one after the other. TimedOut: they did not all come in time; those that did are counted."""

    def size(self) -> int:
        """Return the number of items."""

    def update(self, key: int, priority: float) -> None:
        """Set an item's priority; a key that is not there is ignored."""

    def delete(self, key: int) -> None:
        """Remove an item; a key that is not there is ignored."""

    def reset(self) -> None:
        """Remove every item and forget what the rate limiter has counted."""

    def insert_trajectory(self, steps: Sequence[Mapping[str, int]], last: Mapping[str, int]) -> None:
        """Insert an item of the newest so many steps of each column, after writing steps."""

    def sample_trajectory(self) -> dict[str, Column]:
        """Sample an item of `insert_trajectory`: the steps of each column, oldest first."""

    def close(self) -> None:
        """End it."""


def eventually(server: Server, size: int) -> None:
    """Wait until the table has so many items."""
    wait_until(lambda: server.size() == size, f"a table of {size} items")


def held_back(server: Server, size: int) -> None:
    """Expect that a table has so many items, and keeps having them for a while although an insert waits."""
    eventually(server, size)
    until_s = time.monotonic() + HELD_S
    while time.monotonic() < until_s:
        assert server.size() == size
        time.sleep(0.02)


def filled(server: Server, priorities: Sequence[float]) -> Server:
    """Insert items 0, 1, ... with priorities, each once the one before is there; the table must have room."""
    for value, priority in enumerate(priorities):
        server.insert(value, priority)
        eventually(server, value + 1)
    return server


def values(samples: Sequence[Sampled]) -> list[int]:
    """Return the inserted values, in the order of sampling."""
    return [sample.value for sample in samples]


def drained(server: Server, count: int) -> list[int]:
    """Return the order in which a table gives its items if each leaves after its sample."""
    found = []
    for _ in range(count):
        (sample,) = server.sample()
        found.append(sample.value)
        server.delete(sample.key)
    return found


def remaining(server: Server) -> set[int]:
    """Return the values of all items, which are deleted."""
    return set(drained(server, server.size()))


Start = Callable[[Spec], Server]
