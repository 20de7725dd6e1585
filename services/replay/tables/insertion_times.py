"""Insertion times of items, to the second: a few marks per table instead of a time per item (ADR 0046)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from tidemill.errors import InvalidArgument

PRECISION = 200
"""A time that lies t seconds back is known to t / `PRECISION` seconds, but not below one second."""

_FIRST_THINNING = 1024
_MAX_TIME_S = 2.0**53

LOGGED_EVERY_S = 10
"""By so much, in seconds, an item of a server that was killed may seem to have come too early."""

Mark = tuple[int, int]
"""A time and the insertion number of the first item that came then."""

Marks = tuple[Sequence[int], Sequence[int]]
"""Times and insertion numbers of marks, each as the first value and the differences from one to the next."""


class InsertionTimes:
    """Marks of a time and the insertion number of the first item that came then; an item came at the mark before it.

    Marks are a second apart, and further the longer they lie back: at most 3,600 after a day, 5,600 after a month.
    """

    def __init__(self, marks: Marks = ((), ()), inserted: int = 0) -> None:
        """Begin, or continue with what `marks` returned; those beyond the items ever inserted are left out."""
        times, numbers = (array("q", accumulate(values)) for values in marks)
        known = bisect_right(numbers, inserted)
        self._times, self._numbers = times[:known], numbers[:known]
        self._thin_at = max(_FIRST_THINNING, 2 * known)
        self.logged_s = 0
        """When the log was last told of the newest mark, in seconds; 0 if it was not since the start."""

    @property
    def newest(self) -> Mark | None:
        """The newest mark."""
        return (self._times[-1], self._numbers[-1]) if self._times else None

    @property
    def marks(self) -> Marks:
        """All marks, in whole numbers that JSON can hold."""
        times, numbers = (
            [*values[:1], *(b - a for a, b in pairwise(values))] for values in (self._times, self._numbers)
        )
        return times, numbers

    @property
    def first_s(self) -> int:
        """Unix time from which on it is known when items came, in seconds; 0 if there is no mark."""
        return self._times[0] if self._times else 0

    def note(self, now_s: int, number: int) -> None:
        """Note that the items with insertion number `number` and above come at `now_s` or later.

        A clock that was set back stands still until it is where it was.
        """
        if self._times and now_s <= self._times[-1]:
            return
        if self._numbers and self._numbers[-1] == number:
            self._times[-1] = now_s
            return
        self._times.append(now_s)
        self._numbers.append(number)
        if len(self._times) >= self._thin_at:
            self._thin(now_s)

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
        if not self._times:
            return inserted, inserted
        first = self._numbers[0] if since_s is None else self._first_from(since_s, inserted)
        return first, max(first, inserted if until_s is None else self._first_from(until_s, inserted))

    def _first_from(self, time_s: float, inserted: int) -> int:
        place = bisect_left(self._times, math.ceil(time_s))
        return self._numbers[place] if place < len(self._numbers) else inserted

    def _thin(self, now_s: int) -> None:
        """Drop every mark without which the items under it seem no earlier than they may."""
        times, kept, last = self._times, [0], len(self._times) - 1
        for i in range(1, last):
            start = times[kept[-1]]
            if times[i + 1] - start > max((now_s - start) // PRECISION, 1):
                kept.append(i)
        kept.append(last)
        self._times, self._numbers = (array("q", (values[i] for i in kept)) for values in (times, self._numbers))
        self._thin_at = max(_FIRST_THINNING, 2 * len(kept))
