"""Insertion times of items: a few marks per table instead of a time per item (ADR 0046)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import InvalidArgument

PRECISION = 200
"""A time that lies t seconds back is known to t / `PRECISION` seconds, but not below one second."""

_FIRST_THINNING = 1024
_FINE_MS = 10
_MAX_TIME_S = 2.0**53

LOGGED_EVERY_S = 10
"""By so much, in seconds, an item of a server that was killed may seem to have come too early."""

Mark = tuple[int, int]
"""A time and the insertion number of the first item that came then."""

Marks = tuple[Sequence[int], Sequence[int]]
"""Times and insertion numbers of marks, each as the first value and the differences from one to the next."""


class _Marks:
    """Times in a whole unit, and the number of the first item that came at each. They are thinned with age."""

    def __init__(self, times: Sequence[int], numbers: Sequence[int], least: int) -> None:
        """Begin with some marks; `least` is the smallest distance from one to the next."""
        self.times, self.numbers = array("q", times), array("q", numbers)
        self._least = least
        self._thin_at = max(_FIRST_THINNING, 2 * len(self.times))

    def note(self, now: int, number: int) -> None:
        """Note that items with this number and above come at `now` or later, unless that is too soon for a mark."""
        if self.times and now < self.times[-1] + self._least:
            return
        if self.numbers and self.numbers[-1] == number:
            self.times[-1] = now
            return
        self.times.append(now)
        self.numbers.append(number)
        if len(self.times) >= self._thin_at:
            self._thin(now)

    def _thin(self, now: int) -> None:
        """Drop every mark without which the items under it seem no earlier than they may."""
        times, kept, last = self.times, [0], len(self.times) - 1
        for i in range(1, last):
            start = times[kept[-1]]
            if times[i + 1] - start > max((now - start) // PRECISION, self._least):
                kept.append(i)
        kept.append(last)
        self.times, self.numbers = (array("q", (values[i] for i in kept)) for values in (times, self.numbers))
        self._thin_at = max(_FIRST_THINNING, 2 * len(kept))


class InsertionTimes:
    """Marks of a time and the insertion number of the first item that came then; an item came at the mark before it.

    Marks are a second apart, and further the longer they lie back: at most 3,600 after a day, 5,600 after a month. For
    ages there are finer ones in memory alone, 10 ms apart for the newest two seconds.
    """

    def __init__(self, marks: Marks = ((), ()), inserted: int = 0) -> None:
        """Begin, or continue with what `marks` returned; those beyond the items ever inserted are left out."""
        times, numbers = (array("q", accumulate(values)) for values in marks)
        known = bisect_right(numbers, inserted)
        self._seconds = _Marks(times[:known], numbers[:known], least=1)
        self._fine = _Marks([1000 * time_s for time_s in times[:known]], numbers[:known], least=_FINE_MS)
        self.logged_s = 0
        """When the log was last told of the newest mark, in seconds; 0 if it was not since the start."""

    @property
    def newest(self) -> Mark | None:
        """The newest mark."""
        marks = self._seconds
        return (marks.times[-1], marks.numbers[-1]) if marks.times else None

    @property
    def marks(self) -> Marks:
        """All marks, in whole numbers that JSON can hold."""
        times, numbers = (
            [*values[:1], *(b - a for a, b in pairwise(values))]
            for values in (self._seconds.times, self._seconds.numbers)
        )
        return times, numbers

    @property
    def first_s(self) -> int:
        """Unix time from which on it is known when items came, in seconds; 0 if there is no mark."""
        return self._seconds.times[0] if self._seconds.times else 0

    def note(self, now_s: float, number: int) -> None:
        """Note that the items with insertion number `number` and above come at `now_s` or later.

        A clock that was set back stands still until it is where it was.
        """
        self._seconds.note(int(now_s), number)
        self._fine.note(int(1000 * now_s), number)

    def ages_s(self, ages: Ints, inserted: int, now_s: float) -> NDArray[np.float32]:
        """Return how long ago items came, in seconds, float32 [N]; NaN if they came before the first mark.

        Args:
            ages: Items inserted after each of them, [N].
            inserted: Number of items ever inserted.
            now_s: Unix time.
        """
        marks = self._fine
        if not marks.times:
            return np.full(len(ages), np.nan, dtype=np.float32)
        numbers, times = np.frombuffer(marks.numbers, dtype=np.int64), np.frombuffer(marks.times, dtype=np.int64)
        places = np.searchsorted(numbers, inserted - 1 - ages, side="right") - 1
        ages_s: NDArray[np.float32] = (np.maximum(1000 * now_s - times[places], 0.0) / 1000).astype(np.float32)
        if (before := places < 0).any():
            ages_s[before] = np.nan
        return ages_s

    def numbers(self, since_s: float | None, until_s: float | None, inserted: int) -> tuple[int, int]:
        """Return the first insertion number of the items that came in a range of time, and the one after their last.

        Items from before the first mark came at a time that is not known: they are in no range.

        Args:
            since_s: Unix time from which on they came, in seconds; None for any.
            until_s: Unix time before which they came; None for any.
            inserted: Number of items ever inserted.

        Raises:
            InvalidArgument: A time is none, or the range ends before it begins.
        """
        for name, value in (("since_s", since_s), ("until_s", until_s)):
            if value is not None and not 0 <= value < _MAX_TIME_S:
                raise InvalidArgument(f"{name} is {value}, must be a Unix time of 0 s or more")
        if since_s is not None and until_s is not None and until_s < since_s:
            raise InvalidArgument(f"until_s is {until_s}, must be at least since_s ({since_s})")
        if not self._seconds.times:
            return inserted, inserted
        first = self._seconds.numbers[0] if since_s is None else self._first_from(since_s, inserted)
        return first, max(first, inserted if until_s is None else self._first_from(until_s, inserted))

    def _first_from(self, time_s: float, inserted: int) -> int:
        place = bisect_left(self._seconds.times, math.ceil(time_s))
        return self._seconds.numbers[place] if place < len(self._seconds.numbers) else inserted
