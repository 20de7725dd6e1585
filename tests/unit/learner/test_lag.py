"""Histograms over the items that a learner trains on: policy lag and age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.services.learner.status.metrics import ItemAges, ItemHistogram


def test_items_are_counted_by_their_value() -> None:
    """Values 0, 3, 7 and 20,000: 1 is at most 0, 2 at most 3, 3 at most 10, all at most infinity."""
    histogram = ItemHistogram("lag", "Lag.", (0, 1, 2, 3, 10))
    histogram.observe(np.array([0.0, 3.0]))
    histogram.observe(np.array([7.0, 20_000.0]))
    (family,) = histogram.collect()
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert (found["0.0"], found["2.0"], found["3.0"], found["10.0"], found["+Inf"]) == (1, 1, 2, 3, 4)
    assert (found["lag_sum"], found["lag_count"]) == (20_010, 4)


def test_a_value_that_all_items_have_counts_once_for_each() -> None:
    """It falls into the same bucket as in `observe`."""
    one, all_at_once = (ItemHistogram("lag", "Lag.", (0, 1, 2, 3, 10)) for _ in range(2))
    for value in (0.0, 0.5, 1.0, 10.0, 11.0):
        one.observe(np.full(4, value))
        all_at_once.observe_all(value, 4)
    assert next(one.collect()).samples == next(all_at_once.collect()).samples


@dataclass
class _Batch:
    table_s: NDArray[np.float32] | None
    received_at: float = 100.0
    taken_at: float = 102.0
    decoded_at: float = 103.0


def _batch(table_s: NDArray[np.float32] | None) -> ReplayBatch:
    return cast(ReplayBatch, _Batch(table_s))


def _sums(ages: ItemAges) -> dict[tuple[str, str], float]:
    (family,) = ages.collect()
    return {
        (sample.labels["part"], sample.name.rsplit("_", 1)[1]): sample.value
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_an_items_age_is_the_time_in_the_table_and_what_it_waited_since() -> None:
    """Received at 100 s, decoded from 102 to 103 s, trained on at 107 s: 6 s in queues, 1 s of decoding."""
    ages = ItemAges()
    ages.observe(_batch(np.array([0.5, 20.0, 999.0], np.float32)), 2, now=107.0)
    found = _sums(ages)
    assert {part: found[part, "sum"] for part in ("table", "queue", "decode", "whole")} == pytest.approx(
        {"table": 20.5, "queue": 12.0, "decode": 2.0, "whole": 34.5}
    )
    assert {count for (_, what), count in found.items() if what == "count"} == {2}


@pytest.mark.parametrize("table_s", [None, np.full(2, np.nan, np.float32)])
def test_items_whose_insertion_time_is_unknown_count_only_in_the_parts_that_are_known(
    table_s: NDArray[np.float32] | None,
) -> None:
    """A server of an earlier release does not say, and a restored table may not know."""
    ages = ItemAges()
    ages.observe(_batch(table_s), 2, now=107.0)
    found = _sums(ages)
    assert [found[part, "count"] for part in ("table", "queue", "decode", "whole")] == [0, 2, 2, 0]
