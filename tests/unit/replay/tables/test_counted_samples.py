"""Samples that a rate limiter counts because a caller says so."""

from __future__ import annotations

import pytest

from tidemill.replay.table_config import RateLimiterConfig
from tidemill.services.replay.tables.rate_limiter import RateLimiter

_UINT32 = 2**32 - 1


def limiter_with(diff: float, ratio: float = 1.0) -> RateLimiter:
    """Return a limiter with a buffer of 8 whose inserts are ahead by so much."""
    limiter = RateLimiter(RateLimiterConfig(samples_per_insert=ratio, error_buffer=8.0))
    limiter.restore((1, round(max(diff, 0) / ratio), round(max(-diff, 0))))
    assert limiter.diff == diff
    return limiter


@pytest.mark.parametrize(
    "diff, said, counted",
    [
        (0.0, 16, 16),
        (-8.0, 16, 16),
        (0.0, 17, 16),
        (0.0, _UINT32, 16),
        (100.0, 100, 100),
        (100.0, 40, 40),
        (1000.0, 0, 0),
    ],
)
def test_a_batch_or_the_lead_is_counted(diff: float, said: int, counted: int) -> None:
    """A batch of 16 counts whole wherever its items come from, and a diff can be taken away; beyond is made up."""
    assert limiter_with(diff).countable(said, batch_size=16) == counted


def test_look_takes_off_a_lead_that_is_no_whole_number() -> None:
    """Rounded up, as who samples several servers asks for; whatever is said, hardly more."""
    limiter = limiter_with(37.5, ratio=2.5)
    assert limiter.countable(38, batch_size=1) == 38
    assert limiter.countable(_UINT32, batch_size=1) == 38


def test_callers_cannot_take_the_lead_down_without_end() -> None:
    """After a million times as much as was drawn, inserts of less than an hour let samples continue."""
    limiter = limiter_with(0.0)
    for _ in range(1000):
        limiter.sampled(limiter.countable(_UINT32, batch_size=65_536))
    assert limiter.diff == -(2**20) - 8
    limiter.inserted(2**20, 10)
    assert limiter.can_sample(10)


def test_lead_beyond_all_numbers_is_counted_all_the_same() -> None:
    """A ratio so large that the diff overflows is not the fault of a sampler."""
    limiter = RateLimiter(RateLimiterConfig(samples_per_insert=1e308, error_buffer=1.0))
    limiter.restore((1, 10, 0))
    assert limiter.countable(_UINT32, batch_size=16) == _UINT32
