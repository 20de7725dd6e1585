"""Where Tidemill's tables are not Reverb's: each known difference, what either does, and the row that says so."""

from __future__ import annotations

from pathlib import Path

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
    remaining,
    values,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reverb.md"

DIFFERENCES = (
    "an item that comes to a full table",
    "a prioritized table whose priorities are all 0",
    "`min_size` once items have left",
    "bounds of samples per insert",
    "a queue whose items are sampled more than once",
    "items of equal priority in a heap",
    "`error_buffer` of a ratio",
    "trajectories",
)
"""How the rows of docs/reverb.md begin."""


def test_every_difference_is_a_row_of_the_comparison() -> None:
    """Nobody has to find out by themselves."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for difference in DIFFERENCES:
        assert any(row.startswith(f"| {difference} |") for row in rows), difference


def test_item_that_comes_to_a_full_table(system: str, start: Start) -> None:
    """Tidemill makes room first, so that it always stays; Reverb's remover may pick it at once."""
    server = filled(start(Spec(remover="lifo", max_size=2)), [1.0] * 2)
    server.insert(2)
    if system == "tidemill":
        assert remaining(server) == {0, 2}
    else:
        assert remaining(server) == {0, 1}


def test_priorities_that_are_all_0(system: str, start: Start) -> None:
    """Tidemill waits until one is positive; Reverb samples them uniformly."""
    server = filled(start(Spec(sampler="prioritized")), [0.0] * 2)
    if system == "tidemill":
        assert _is_held(server)
    else:
        assert server.sample()[0].probability == 0.5


def test_min_size_once_items_have_left(system: str, start: Start) -> None:
    """Tidemill asks once whether the table has held as many; Reverb holds samples back again."""
    server = filled(start(Spec(limiter=Limiter("min_size", 2))), [1.0] * 2)
    server.delete(server.sample()[0].key)
    assert _is_held(server) == (system == "reverb")


def test_bounds_of_samples_per_insert(system: str, start: Start) -> None:
    """Tidemill admits what begins within the buffer; Reverb what would end within it."""
    server = filled(start(Spec(limiter=Limiter("ratio", 1, 1.0, 2.0))), [1.0])
    taken = 0
    while not _is_held(server):
        taken += 1
    assert taken == (3 if system == "tidemill" else 2)


def test_queue_whose_items_are_sampled_more_than_once(system: str, start: Start) -> None:
    """Tidemill's queue counts its items; Reverb's inserts less samples, so that two samples leave it empty for it."""
    server = filled(start(Spec("fifo", "fifo", 3, Limiter("queue", 2), max_times_sampled=2)), [1.0] * 2)
    server.insert(2)
    server.sample()
    if system == "tidemill":
        held_back(server, 2)
        assert values(server.sample(2)) == [0, 1]
        eventually(server, 2)
    else:
        eventually(server, 3)
        assert values(server.sample(2)) == [0, 1]
        assert server.size() == 2
        assert _is_held(server)


def test_items_of_equal_priority_in_a_heap(system: str, start: Start) -> None:
    """Tidemill takes the one in the lowest slot; Reverb the one that was inserted or updated least recently."""
    server = filled(start(Spec(sampler="max_heap")), [1.0] * 2)
    (first,) = server.sample()
    assert first.value == 0
    server.update(first.key, 1.0)
    assert values(server.sample()) == ([0] if system == "tidemill" else [1])


def test_error_buffer_that_is_small(system: str, start: Start) -> None:
    """Tidemill takes any that is positive; Reverb none below max(1, samples per insert)."""
    spec = Spec(limiter=Limiter("ratio", 1, 4.0, 0.5))
    if system == "tidemill":
        filled(start(spec), [1.0])
    else:
        with pytest.raises(ValueError, match="error_buffer"):
            start(spec)


def _is_held(server: Server) -> bool:
    """True if a sample has to wait; otherwise it was taken."""
    try:
        server.sample(timeout_s=HELD_S)
    except TimedOut:
        return True
    return False
