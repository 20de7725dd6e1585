"""Rate limiters as Reverb publishes them (the docstrings of reverb/rate_limiters.py): who waits, and until when."""

from __future__ import annotations

import time

import pytest

from tests.integration.conformance.adapter import (
    HELD_S,
    Limiter,
    Server,
    Spec,
    Start,
    TimedOut,
    eventually,
    filled,
    held_back,
    values,
)


def test_min_size_holds_samples_until_the_table_has_as_many(start: Start) -> None:
    """Inserts never wait; a sample does, below it."""
    server = filled(start(Spec(limiter=Limiter("min_size", 3))), [1.0] * 2)
    with pytest.raises(TimedOut):
        server.sample(timeout_s=HELD_S)
    server.insert(2)
    eventually(server, 3)
    assert values(server.sample(10)) == [0] * 10
    for value in range(3, 20):
        server.insert(value)
    eventually(server, 20)


def test_ratio_holds_inserts_that_are_ahead(start: Start) -> None:
    """Two samples for each insert beyond the minimum, give or take 4: then samples must come first."""
    server = filled(start(Spec(limiter=Limiter("ratio", 2, 2.0, 4.0))), [1.0] * 2)
    for value in range(2, 12):
        server.insert(value)
    eventually_held = _settled(server)
    assert 4 <= eventually_held <= 5  # see the differences for why it is not one number
    server.sample(6)
    assert _settled(server) == eventually_held + 3


def test_ratio_holds_samples_that_are_ahead(start: Start) -> None:
    """Without inserts a few samples may be taken, and then none; each further insert allows two more."""
    server = filled(start(Spec(limiter=Limiter("ratio", 2, 2.0, 4.0))), [1.0] * 2)
    allowed = _samples_until_held(server)
    assert 4 <= allowed <= 5
    server.insert(2)
    eventually(server, 3)
    assert _samples_until_held(server) == 2


def test_ratio_is_held_over_a_long_run(start: Start) -> None:
    """Whatever order inserts and samples are asked for in, there are two samples for each insert in the end."""
    server = filled(start(Spec(limiter=Limiter("ratio", 2, 2.0, 4.0))), [1.0] * 2)
    for value in range(2, 42):
        server.insert(value)
    server.sample(80)
    eventually(server, 42)
    assert 0 <= _samples_until_held(server) <= 5


@pytest.mark.parametrize("kind, order", [("queue", [0, 1, 2, 3]), ("stack", [2, 3, 1, 0])])
def test_queue_and_stack_hold_inserts_while_full_and_give_each_item_once(
    start: Start, kind: str, order: list[int]
) -> None:
    """Of three places the fourth item waits for the first sample; each is sampled once, in the order of the kind."""
    side = {"queue": "fifo", "stack": "lifo"}[kind]
    server = start(Spec(side, side, 3, Limiter(kind, 3), max_times_sampled=1))
    for value in range(4):
        server.insert(value)
    held_back(server, 3)
    first = values(server.sample())
    eventually(server, 3)
    assert first + values(server.sample(3)) == order
    assert server.size() == 0
    with pytest.raises(TimedOut):
        server.sample(timeout_s=HELD_S)


def test_reset_forgets_what_was_counted(start: Start) -> None:
    """A table whose inserts were ahead takes as many again."""
    server = filled(start(Spec(limiter=Limiter("ratio", 2, 2.0, 4.0))), [1.0] * 4)
    server.reset()
    eventually(server, 0)
    filled(server, [1.0] * 4)


def _settled(server: Server) -> int:
    """Return the number of items once it stays the same."""
    size, since_s = server.size(), time.monotonic()
    while time.monotonic() < since_s + HELD_S:
        if (now := server.size()) != size:
            size, since_s = now, time.monotonic()
        time.sleep(0.02)
    return size


def _samples_until_held(server: Server) -> int:
    taken = 0
    while True:
        try:
            server.sample(timeout_s=HELD_S)
        except TimedOut:
            return taken
        taken += 1
