"""When items came, as a few marks say, beside a list of every item's time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import InvalidArgument
from tidemill.services.replay.tables.insertion_times import PRECISION, InsertionTimes

_BEGAN_S = 1_700_000_000


def _filled(gaps: list[float]) -> tuple[InsertionTimes, list[float]]:
    """Return the marks of items that come so many seconds apart, two at a time, and the time of each item."""
    times, came, now_s = InsertionTimes(), list[float](), float(_BEGAN_S)
    for gap in gaps:
        now_s += gap
        times.note(int(now_s), len(came))
        came += [now_s, now_s]
    return times, came


@given(st.lists(st.floats(0, 5), min_size=1, max_size=50), st.floats(-3, 260), st.floats(0, 100))
def test_range_has_the_items_of_its_seconds(gaps: list[float], begins: float, lasts: float) -> None:
    """As long as nothing is thinned out, an item counts as come at the second in which it did."""
    times, came = _filled(gaps)
    since_s, until_s = _BEGAN_S + begins, _BEGAN_S + begins + lasts
    expected = [i for i, time_s in enumerate(came) if since_s <= int(time_s) < until_s]
    assert list(range(*times.numbers(since_s, until_s, len(came)))) == expected


@pytest.mark.parametrize("seed", range(3))
def test_what_lies_back_is_known_to_a_fraction_of_that_with_a_bounded_number_of_marks(seed: int) -> None:
    """Of ten days with pauses, every item is found at most 0.5 % of its age too early, and never too late."""
    rng = np.random.default_rng(seed)
    times, came = _filled(np.where(rng.random(40_000) < 0.001, 5000.0, rng.exponential(17.0, 40_000)).tolist())
    now_s = came[-1]
    assert now_s - came[0] > 8 * 86_400
    for i in rng.integers(len(came), size=300).tolist():
        slack = max((now_s - came[i]) / (PRECISION - 1), 1) + 1
        assert times.numbers(came[i] + 1, None, len(came))[0] > i
        assert times.numbers(came[i] - slack, None, len(came))[0] <= i
    assert len(times.marks[0]) < 4500


def test_two_ranges_that_meet_share_no_item_and_leave_none_out() -> None:
    """Until a time and since it: one and the same border."""
    times, came = _filled([0.7] * 5000)
    for border in np.linspace(_BEGAN_S, came[-1], 50).tolist():
        first, end = times.numbers(None, border, len(came))
        assert (first, times.numbers(border, None, len(came))) == (0, (end, len(came)))


def test_items_from_before_the_first_mark_are_in_no_range() -> None:
    """Nobody knows when those came; without any mark that is all."""
    times = InsertionTimes()
    assert times.numbers(None, 9e9, 7) == (7, 7)
    assert times.first_s == 0
    times.note(_BEGAN_S, 7)
    assert times.numbers(None, 9e9, 10) == (7, 10)
    assert times.numbers(0, None, 10) == (7, 10)
    assert times.numbers(None, _BEGAN_S, 10) == (7, 7)
    assert times.first_s == _BEGAN_S


def test_clock_that_is_set_back_stands_still() -> None:
    """Until it is again where it was, items count as come then."""
    times = InsertionTimes()
    for number, now_s in enumerate((100, 50, 99, 101)):
        times.note(now_s, number)
    assert times.numbers(100, 101, 4) == (0, 3)
    assert times.numbers(101, None, 4) == (3, 4)


def test_second_without_items_leaves_no_mark() -> None:
    """The next item came when it came, not when the message before it did."""
    times = InsertionTimes()
    for now_s in (100, 200, 300):
        times.note(now_s, 0)
    assert times.numbers(300, None, 1) == (0, 1)
    assert times.marks == ([300], [0])


def test_marks_come_back_from_json_without_those_beyond_the_last_item() -> None:
    """A log whose end is lost continues before them."""
    times, came = _filled([1.5] * 20)
    marks = json.loads(json.dumps(times.marks))
    assert InsertionTimes(marks, len(came)).marks == times.marks
    cut = InsertionTimes(marks, 21)
    assert cut.numbers(0, None, 21) == (0, 21)
    assert sum(cut.marks[1]) == 20


@pytest.mark.parametrize(
    "wanted", [(-1.0, None), (None, float("nan")), (float("inf"), None), (None, 1e300), (2.0, 1.0)]
)
def test_what_is_no_range_is_refused_by_name(wanted: tuple[float | None, float | None]) -> None:
    """Negative, infinite, not a number, or ending before it begins."""
    with pytest.raises(InvalidArgument, match=r"(since|until)_s"):
        InsertionTimes().numbers(*wanted, 0)


@pytest.mark.parametrize("gap_s", [0.0005, 0.05, 17.0])
def test_ages_are_known_to_ten_milliseconds_or_a_fraction(gap_s: float) -> None:
    """An item never seems younger than it is, and older by at most 10 ms or 0.5 %, with a bounded number of marks."""
    rng = np.random.default_rng(0)
    times, came, now_s = InsertionTimes(), list[float](), float(_BEGAN_S)
    for gap in rng.exponential(gap_s, 20_000).tolist():
        now_s += gap
        times.note(now_s, len(came))
        came += [now_s, now_s]
    ages = rng.integers(len(came), size=500)
    found = times.ages_s(ages, len(came), now_s + 0.5)
    true = now_s + 0.5 - np.array(came)[len(came) - 1 - ages]
    assert np.all(found >= true - 0.002 - 1e-6 * true)
    assert np.all(found - true <= np.maximum(true / (PRECISION - 1), 0.01) + 0.012)


def test_ages_survive_a_restart_to_the_second_and_are_unknown_before_the_first_mark() -> None:
    """The marks in the log are whole seconds; items from before them came at a time that nobody noted."""
    times = InsertionTimes()
    times.note(_BEGAN_S + 0.9, 3)
    times.note(_BEGAN_S + 7.2, 4)
    restored = InsertionTimes(times.marks, inserted=5)
    ages_s = restored.ages_s(np.array([4, 1, 0]), 5, _BEGAN_S + 10.0)
    assert np.isnan(ages_s[0])
    assert ages_s[1:].tolist() == [10.0, 3.0]
    assert np.isnan(InsertionTimes().ages_s(np.array([0]), 1, _BEGAN_S)).all()


def test_an_item_is_not_younger_than_now() -> None:
    """A clock that was set back gives ages of zero, none below."""
    times = InsertionTimes()
    times.note(_BEGAN_S, 0)
    assert times.ages_s(np.array([0]), 1, _BEGAN_S - 100.0).tolist() == [0.0]
