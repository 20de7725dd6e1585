"""The rate limiter's arithmetic, and that its two sides never wait for each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.replay.table_config import RateLimiterConfig
from tidemill.services.replay.tables.rate_limiter import RateLimiter


def test_samples_wait_until_min_size_was_reached_once() -> None:
    """Below min_size samples wait; afterwards one item is enough."""
    limiter = RateLimiter(RateLimiterConfig(min_size=3))
    limiter.inserted(2, 2)
    assert not limiter.can_sample(2)
    limiter.inserted(1, 3)
    assert limiter.can_sample(3)
    assert limiter.can_sample(1)
    assert not limiter.can_sample(0)


def test_ratio_is_counted_from_min_size() -> None:
    """With 4 samples per insert and a buffer of 8 around min_size 10, the diff is that of the items beyond 10."""
    limiter = RateLimiter(RateLimiterConfig(min_size=10, samples_per_insert=4.0, error_buffer=8.0))
    limiter.inserted(10, 10)
    assert limiter.diff == 0
    limiter.inserted(2, 12)
    assert limiter.diff == 8
    assert limiter.can_insert(12)
    limiter.inserted(1, 13)
    assert limiter.diff == 12
    assert not limiter.can_insert(13)
    limiter.sampled(4)
    assert limiter.can_insert(13)
    limiter.sampled(20)
    assert limiter.diff == -12
    assert not limiter.can_sample(13)
    limiter.inserted(1, 14)
    assert limiter.can_sample(14)


def test_batch_that_passes_min_size_counts_only_what_lies_beyond() -> None:
    """An insert from 0 to 15 with min_size 10 is 5 items ahead."""
    limiter = RateLimiter(RateLimiterConfig(min_size=10, samples_per_insert=2.0, error_buffer=1.0))
    limiter.inserted(15, 15)
    assert limiter.diff == 10


def test_table_emptied_below_min_size_is_filled_again() -> None:
    """Inserts that are far ahead of the samples continue all the same while the table holds less than min_size."""
    limiter = RateLimiter(RateLimiterConfig(min_size=3, samples_per_insert=1.0, error_buffer=2.0))
    limiter.inserted(10, 10)
    assert not limiter.can_insert(10)
    assert limiter.can_insert(2)
    assert limiter.can_insert(0)
    assert not limiter.can_insert(3)


def test_queue_blocks_inserts_at_its_size() -> None:
    """A queue of 2 admits an insert at 1 item and none at 2."""
    limiter = RateLimiter(RateLimiterConfig(queue_size=2))
    assert limiter.can_insert(1)
    assert not limiter.can_insert(2)


@settings(deadline=None)
@given(
    ratio=st.floats(0.01, 100),
    buffer=st.floats(0.001, 1000),
    min_size=st.integers(1, 500),
    calls=st.lists(st.tuples(st.booleans(), st.integers(1, 1000)), max_size=100),
)
def test_one_side_is_always_admitted_and_the_lead_stays_within_one_call(
    ratio: float, buffer: float, min_size: int, calls: list[tuple[bool, int]]
) -> None:
    """Whatever the sizes of calls: never are both sides blocked, and the diff passes the buffer by one call at most."""
    limiter = RateLimiter(RateLimiterConfig(min_size, ratio, buffer))
    size = 0
    for wants_insert, count in calls:
        assert limiter.can_insert(size) or limiter.can_sample(size)
        if (wants_insert and limiter.can_insert(size)) or not limiter.can_sample(size):
            size += count
            limiter.inserted(count, size)
            assert limiter.diff <= buffer + count * ratio + 1e-6
        else:
            limiter.sampled(count)
            assert limiter.diff >= -buffer - count - 1e-6


@pytest.mark.parametrize(
    "values, named",
    [
        ({"min_size": 0}, "min_size 0"),
        ({"samples_per_insert": -1.0}, "samples_per_insert -1.0"),
        ({"samples_per_insert": float("nan")}, "samples_per_insert nan"),
        ({"samples_per_insert": 1.0}, "error_buffer 0.0"),
        ({"error_buffer": 1.0}, "error_buffer 1.0"),
        ({"samples_per_insert": 1.0, "error_buffer": float("inf")}, "error_buffer inf"),
        ({"samples_per_insert": 1.0, "error_buffer": 1.0, "queue_size": 5}, "queue_size 5 samples_per_insert 1.0"),
        ({"queue_size": 5, "min_size": 6}, "queue_size 5"),
    ],
)
def test_wrong_setting_is_refused_by_name_and_value(values: dict[str, float], named: str) -> None:
    """A limiter that cannot work is refused with the field and its value."""
    with pytest.raises(InvalidArgument, match=naming(named)):
        RateLimiterConfig(**values)  # type: ignore[arg-type]
