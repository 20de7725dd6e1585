"""Episodes of an exported table: its steps in the order in which environments made them, whatever its items are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.replay.table_config import TableConfig
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.writing.steps import SEPARATOR

Form = Literal["env", "run", "flat"]
"""How observations and actions are stored: as the environment has them, as a run does, or as one with `env.flatten`."""

FORMS: tuple[Form, ...] = get_args(Form)

Ranges = list[tuple[int, int]]

OBSERVATION, NEXT, ACTION = "observation", "next_observation", "action"
_FLAGS = ("terminated", "truncated", "is_first")
_NEEDED = (OBSERVATION, ACTION, "reward", "terminated", "truncated")


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """T steps of one episode, by column; the last step is terminated or truncated.

    Attributes:
        observations: Columns of the observation, each [T + 1, ...].
        actions: Columns of the action, each [T, ...].
        rewards: [T].
        terminated: bool [T].
        truncated: bool [T].
        others: Every other column, each [T, ...].
    """

    observations: dict[str, Array]
    actions: dict[str, Array]
    rewards: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    others: dict[str, Array]


def columns_of(names: Sequence[str], part: str) -> list[str]:
    """Return the columns that `part` of a step flattened to: itself, or those that begin with it."""
    return [name for name in names if name == part or name.startswith(part + SEPARATOR)]


def check_columns(table: TableConfig) -> None:
    """Raise InvalidArgument if a table lacks a column that an episode needs, or its next observation has others."""
    names = [column.name for column in table.signature]
    if lacking := [part for part in _NEEDED if not columns_of(names, part)]:
        raise InvalidArgument(f"table {table.name!r} has columns {names}, must have {lacking}, too, for episodes")
    following, observation = columns_of(names, NEXT), columns_of(names, OBSERVATION)
    if following and [name.removeprefix("next_") for name in following] != observation:
        raise InvalidArgument(f"columns {following} must be those of the observation, {observation}")


class Episodes:
    """Reads episodes from an export with the columns of `signature_of`, or of transitions with `next_observation`."""

    def __init__(self, exported: ExportedTable) -> None:
        """Look at the columns.

        Raises:
            InvalidArgument: The table lacks a column that an episode needs.
        """
        check_columns(exported.config)
        self._exported = exported
        self._names = names = [column.name for column in exported.config.signature]
        self._observation, self._action = columns_of(names, OBSERVATION), columns_of(names, ACTION)
        self._next = columns_of(names, NEXT)
        known = {*self._observation, *self._action, *self._next, "reward", *_FLAGS}
        self._others = [name for name in names if name not in known]

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode, or what is left of it, in order of the streams."""
        for ranges in self._segments():
            flags = self._load(ranges, [name for name in _FLAGS if name in self._names])
            over = flags["terminated"] | flags["truncated"]
            first = flags.get("is_first", np.zeros(len(over), np.bool_))
            yield from self._transitions(ranges, over) if self._next else self._steps(ranges, flags, over, first)

    def _segments(self) -> Iterator[Ranges]:
        """Yield rows that items cover and that follow one another; what `flush` repeated is there once."""
        exported = self._exported
        is_covered, is_linked = self._count(0) > 0, self._count(1) > 0
        starts = np.cumsum(exported.step_counts) - exported.step_counts
        begins = is_covered.copy()
        begins[1:] &= ~is_covered[:-1]
        # A chunk in which no item continues from the one before belongs to the next stream, or starts after a flush.
        fresh = starts[~exported.continues | ~is_linked[np.maximum(starts - 1, 0)]]
        begins[fresh] |= is_covered[fresh]
        ends = is_covered.copy()
        ends[:-1] &= ~is_covered[1:] | begins[1:]
        other_streams = set(starts[~exported.continues].tolist())
        begun: Ranges = []
        for start, end in zip(np.flatnonzero(begins).tolist(), (np.flatnonzero(ends) + 1).tolist(), strict=True):
            repeated = self._repeated(begun, start, end, starts) if begun else 0
            if repeated or (begun and start == begun[-1][1] and start not in other_streams):
                begun.append((start + repeated, end))
                continue
            if begun:
                yield begun
            begun = [(start, end)]
        if begun:
            yield begun

    def _count(self, less: int) -> Array:
        """Return for each row how many items have it, and `less` rows after it."""
        exported = self._exported
        change = np.zeros(exported.steps + 1, dtype=np.int32)
        np.add.at(change, exported.first_rows, 1)
        np.add.at(change, exported.first_rows + exported.lengths - less, -1)
        counts: Array = np.cumsum(change[:-1])
        return counts

    def _repeated(self, before: Ranges, start: int, end: int, starts: Array) -> int:
        """Return how many rows from `start` on are the last ones before, as where a flushed chunk ended early."""
        chunk = int(np.searchsorted(starts, start, side="right")) - 1
        previous = before[-1][1]
        follows = starts[chunk] == start and self._exported.continues[chunk] and previous > starts[chunk - 1]
        if not follows:
            return 0
        most = min(self._exported.config.max_item_steps - 1, sum(b - a for a, b in before), end - start)
        rows = self._load([(start, start + most)], self._names)
        old = self._load(_cut(before, -most), self._names) if most else rows
        for count in range(most, 0, -1):
            if all(np.array_equal(_bits(rows[n][:count]), _bits(old[n][most - count :])) for n in self._names):
                return count
        return 0

    def _steps(self, ranges: Ranges, flags: dict[str, Array], over: Array, first: Array) -> Iterator[Episode]:
        """Yield the episodes of rows whose next observation is in the next row."""
        start, count = 0, len(over)
        cuts = np.flatnonzero(over | np.append(first[1:], True))  # the last row of an episode, or of what there is
        for end in cuts.tolist():
            if end < start:
                continue  # a final observation step that was taken
            if over[end] and "is_first" in flags and end + 1 < count and not first[end + 1]:
                last, following = end + 1, end + 2  # the final observation step
            elif flags["terminated"][end]:
                yield self._episode(_cut(ranges, start, end + 1), repeats_last=True)
                start = end + 1
                continue
            else:
                last, following = end, end + 1
            if last > start:
                yield self._episode(_cut(ranges, start, last + 1), repeats_last=False)
            start = following

    def _episode(self, ranges: Ranges, *, repeats_last: bool) -> Episode:
        """Return an episode whose last row is its final observation, or is to be followed by its own observation."""
        rows = self._load(ranges, self._names)
        if repeats_last:
            rows = {name: np.concatenate([column, column[-1:]]) for name, column in rows.items()}
        return self._made({name: rows[name] for name in self._observation}, rows, len(rows["reward"]) - 1)

    def _transitions(self, ranges: Ranges, over: Array) -> Iterator[Episode]:
        """Yield the episodes of rows that have their next observation."""
        start = 0
        for end in sorted({*np.flatnonzero(over).tolist(), len(over) - 1}):
            rows = self._load(_cut(ranges, start, end + 1), self._names)
            goes_on = np.ones(end - start, dtype=np.bool_)
            for name, after in zip(self._observation, self._next, strict=True):
                same = _bits(rows[name][1:]) == _bits(rows[after][:-1])
                goes_on &= same.all(axis=tuple(range(1, same.ndim)))
            bounds = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), end + 1 - start]
            for a, b in pairwise(bounds):
                part = {name: column[a:b] for name, column in rows.items()}
                pairs = zip(self._observation, self._next, strict=True)
                yield self._made(
                    {name: np.concatenate([part[name], part[after][-1:]]) for name, after in pairs}, part, b - a
                )
            start = end + 1

    def _made(self, observations: dict[str, Array], rows: dict[str, Array], count: int) -> Episode:
        terminated, truncated = rows["terminated"][:count].copy(), rows["truncated"][:count].copy()
        truncated[-1] |= not terminated[-1]  # what was cut off ends here
        return Episode(
            observations,
            {name: rows[name][:count] for name in self._action},
            rows["reward"][:count],
            terminated,
            truncated,
            {name: rows[name][:count] for name in self._others},
        )

    def _load(self, ranges: Ranges, names: Sequence[str]) -> dict[str, Array]:
        parts = [self._exported.rows(start, end, names) for start, end in ranges]
        return parts[0] if len(parts) == 1 else {n: np.concatenate([part[n] for part in parts]) for n in names}


def _cut(ranges: Ranges, start: int, stop: int | None = None) -> Ranges:
    """Return rows `start` .. `stop` - 1 of rows in several ranges, counted from the end if negative."""
    total = sum(b - a for a, b in ranges)
    start, stop = (start + total if start < 0 else start), total if stop is None else stop
    found, at = [], 0
    for a, b in ranges:
        low, high = max(start - at, 0), min(stop - at, b - a)
        if low < high:
            found.append((a + low, a + high))
        at += b - a
    return found


def _bits(array: Array) -> Array:
    """Return an array's bytes, [..., itemsize], so that equal means equal, NaN or not."""
    return np.ascontiguousarray(array)[..., None].view(np.uint8)
