"""Splitting a batch over shards in proportion to their weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.replay.sampling.sharded_table import capped_split, systematic_split

MASSES = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=8).filter(any)


@given(st.integers(0, 5000), MASSES, st.integers(0, 2**32))
def test_each_shard_gets_its_share_rounded(count: int, weights: list[float], seed: int) -> None:
    """The parts add up, each is the exact share rounded up or down, and without weight there is none."""
    parts = systematic_split(count, weights, np.random.default_rng(seed))
    assert sum(parts) == count
    for part, total_weight in zip(parts, weights, strict=True):
        exact = count * total_weight / sum(weights)
        assert exact - 1 - 1e-6 <= part <= exact + 1 + 1e-6
        assert total_weight > 0 or part == 0


class _Last(np.random.Generator):
    """Always draws the greatest offset there is."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        """Return the float below 1."""
        return float(np.nextafter(1.0, 0.0))


@pytest.mark.parametrize("count", [1, 7, 256, 65_536])
def test_greatest_offset_draws_nothing_beyond_the_batch(count: int) -> None:
    """Where offset and count round up to the next whole number, the last shard with total_weight takes no item more."""
    parts = systematic_split(count, [1.0, 2.0, 0.0], _Last())
    assert sum(parts) == count
    assert parts[2] == 0


def test_average_part_is_the_exact_share() -> None:
    """Over 20,000 splits of 5 items the mean of each part is within 4 standard errors of its share."""
    rng, weights = np.random.default_rng(5), [1.0, 2.5, 0.0, 4.0]
    parts = np.array([systematic_split(5, weights, rng) for _ in range(20_000)])
    share = 5 * np.array(weights) / sum(weights)
    error = parts.std(axis=0) / np.sqrt(len(parts))
    assert (np.abs(parts.mean(axis=0) - share) <= 4 * error + 1e-12).all()


@settings(deadline=None)
@given(st.data(), MASSES, st.integers(0, 2**32))
def test_capped_part_never_exceeds_its_cap(data: st.DataObject, weights: list[float], seed: int) -> None:
    """The parts add up as long as the caps of shards with weight do, and a shard without weight gives nothing."""
    caps = data.draw(st.lists(st.integers(0, 50), min_size=len(weights), max_size=len(weights)))
    count = data.draw(
        st.integers(0, sum(cap for cap, total_weight in zip(caps, weights, strict=True) if total_weight > 0))
    )
    parts = capped_split(count, weights, caps, np.random.default_rng(seed))
    assert sum(parts) == count
    assert all(
        part <= cap and (total_weight > 0 or part == 0)
        for part, cap, total_weight in zip(parts, caps, weights, strict=True)
    )
