"""Queues in which calls wait: for the rate limiter and memory, in order of arrival, in lock-step for a step count."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tidemill.errors import FailedPrecondition, Reason
from tidemill.services.replay.tables.table import Table

Side = Literal["insert", "sample"]
T = TypeVar("T")


@dataclass(eq=False)
class _Waiting:
    """One call that waits."""

    admitted: Callable[[], bool]
    act: Callable[[], object]
    tables: tuple[Table, ...]
    future: asyncio.Future[object]


@dataclass
class _Stopwatch:
    """Adds up the time during which any call waits."""

    total_s: float = 0.0
    waiting: int = 0
    since: float = 0.0


class _Demand:
    """Sizes of the batches that calls of one kind wait for at one table."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._largest_first: list[int] = []  # a heap of negative sizes, each once, of which some may have gone

    def add(self, size: int) -> None:
        """Count a batch."""
        if size not in self._counts:
            heapq.heappush(self._largest_first, -size)
        self._counts[size] += 1

    def remove(self, size: int) -> None:
        """Take back a batch."""
        self._counts[size] -= 1
        while self._largest_first and not self._counts[-self._largest_first[0]]:
            del self._counts[-heapq.heappop(self._largest_first)]

    @property
    def largest(self) -> int:
        """Size of the largest batch; 0 if there is none."""
        return -self._largest_first[0] if self._largest_first else 0


class AdmissionQueue:
    """Runs inserts and samples when their tables admit them, and makes them wait until then.

    Whatever is admitted runs at once, within the event loop, so that nothing can come between the decision and
    the act. Every change of a table must be followed by `changed`, whose cost does not grow with the number of waiting
    calls: only the first in line of each table is checked.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create an open admission; `clock` returns seconds and never goes back."""
        self._clock = clock
        self._lines: dict[Side, dict[Table, OrderedDict[_Waiting, None]]] = {"insert": {}, "sample": {}}
        self._demands: dict[tuple[Table, bool], _Demand] = {}  # by table and whether without replacement
        self._watches: dict[tuple[Table, Side], _Stopwatch] = {}

    async def insert(self, tables: Sequence[Table], act: Callable[[], T]) -> T:
        """Run an insert into tables once all of them admit it; return its result or raise its error."""
        tables = tuple(tables)
        return await self._pass("insert", tables, lambda: all(map(self._admits_insert, tables)), act)

    def would_wait(self, tables: Sequence[Table]) -> bool:
        """True if an insert into tables would have to wait."""
        lines = self._lines["insert"]
        return any(lines.get(table) for table in tables) or not all(map(self._admits_insert, tables))

    async def sample(
        self,
        table: Table,
        batch_size: int,
        without_replacement: bool,
        act: Callable[[], T],
        *,
        limited: bool = True,
        has_room: Callable[[], bool] = lambda: True,
        first: bool = False,
    ) -> T:
        """Run a sample of a table once it admits a batch of that size; return its result or raise its error.

        A sample that is not `limited` waits for items only, not for the rate limiter. Whatever makes `has_room` true
        again must be followed by `changed`. One that is `first` does not wait in line if it is admitted now.
        """
        admitted = table.can_sample if limited else table.has_draws
        demand = self._demands.setdefault((table, without_replacement), _Demand())
        demand.add(batch_size)
        try:
            if not table.has_draws(batch_size, without_replacement):
                self.changed()  # an insert held back by the ratio may proceed now that a sample waits for items
            return await self._pass(
                "sample",
                (table,),
                lambda: has_room() and admitted(batch_size, without_replacement),
                act,
                first=first,
            )
        finally:
            demand.remove(batch_size)

    def changed(self) -> None:
        """Run every waiting call that is now admitted; called after any change of a table."""
        while self._run_next("insert") or self._run_next("sample"):
            pass

    def waiting(self, table: Table, side: Side) -> int:
        """Return the number of calls of a side that wait at a table."""
        return len(self._lines[side].get(table, ()))

    def blocked_s(self, table: Table, side: Side) -> float:
        """Return the time during which at least one call of a side waited at a table, in seconds."""
        watch = self._watches.get((table, side), _Stopwatch())
        return watch.total_s + (self._clock() - watch.since if watch.waiting else 0.0)

    def forget_blocked(self, table: Table) -> None:
        """Zero both times of a table."""
        for side in ("insert", "sample"):
            if watch := self._watches.get((table, side)):
                watch.total_s, watch.since = 0.0, self._clock()

    def forget(self, table: Table) -> None:
        """Keep nothing of a table that was dropped; `changed` has ended the calls that waited for it."""
        for side in ("insert", "sample"):
            self._lines[side].pop(table, None)
            self._watches.pop((table, side), None)
        for without_replacement in (False, True):
            self._demands.pop((table, without_replacement), None)

    def _admits_insert(self, table: Table) -> bool:
        """True if a table admits an insert: by its limiter, or because a sample waits for more items.

        Without the second rule an insert that waits for samples and a sample that waits for items could wait for
        each other, when items may be sampled only so often.
        """
        return table.can_insert() or any(
            self._starves(table, without_replacement) for without_replacement in (False, True)
        )

    def _starves(self, table: Table, without_replacement: bool) -> bool:
        """True if the waiting sample with the largest batch lacks items."""
        demand = self._demands.get((table, without_replacement))
        return demand is not None and demand.largest > 0 and not table.has_draws(demand.largest, without_replacement)

    async def _pass(
        self,
        side: Side,
        tables: tuple[Table, ...],
        admitted: Callable[[], bool],
        act: Callable[[], T],
        *,
        first: bool = False,
    ) -> T:
        def may_act() -> bool:  # a dropped table keeps no call waiting
            return any(table.dropped for table in tables) or admitted()

        def checked() -> T:
            for table in tables:
                table.check_there()
            return act()

        lines = [self._lines[side].setdefault(table, OrderedDict()) for table in tables]
        if (first or not any(lines)) and may_act():
            result = checked()
            self.changed()
            return result
        waiting = _Waiting(may_act, checked, tables, asyncio.get_running_loop().create_future())
        for line in lines:
            line[waiting] = None
        self._start(side, tables)
        try:
            return await waiting.future  # type: ignore[return-value]
        finally:
            self._stop(side, tables)
            if self._leave(side, waiting):  # cancelled: others may be next now
                self.changed()

    def _run_next(self, side: Side) -> bool:
        """Run a waiting call that is first in line at all its tables and admitted, or has lost one of them.

        Returns:
            Whether there was one.
        """
        lines = self._lines[side]
        for line in lines.values():
            first = next(iter(line), None)
            if first is None:
                continue
            if first.future.done():  # it was cancelled, and is in the way until its task runs
                self._leave(side, first)
                return True
            is_dropped = any(table.dropped for table in first.tables)  # then its place in other lines does not matter
            if is_dropped or (all(next(iter(lines[table])) is first for table in first.tables) and first.admitted()):
                self._leave(side, first)
                _settle(first)
                return True
        return False

    def _leave(self, side: Side, waiting: _Waiting) -> bool:
        """Take a call out of the lines it stands in; return whether it stood there."""
        lines = [line for table in waiting.tables if waiting in (line := self._lines[side].get(table, OrderedDict()))]
        for line in lines:
            del line[waiting]
        return bool(lines)

    def _start(self, side: Side, tables: tuple[Table, ...]) -> None:
        for table in tables:
            watch = self._watches.setdefault((table, side), _Stopwatch())
            if not watch.waiting:
                watch.since = self._clock()
            watch.waiting += 1

    def _stop(self, side: Side, tables: tuple[Table, ...]) -> None:
        for table in tables:
            watch = self._watches.get((table, side))
            if watch is None:  # it was dropped
                continue
            watch.waiting -= 1
            if not watch.waiting:
                watch.total_s += self._clock() - watch.since


def _settle(waiting: _Waiting) -> None:
    try:
        waiting.future.set_result(waiting.act())
    except Exception as error:
        waiting.future.set_exception(error)


class StepClock:
    """Lets calls wait until a step count is reached, which appends move on."""

    def __init__(self, count: Callable[[], int]) -> None:
        """Take what counts the steps; every append must be followed by `advanced`."""
        self._count = count
        self._advanced = asyncio.Event()
        self._waiting = 0

    async def reach(self, steps: int) -> None:
        """Wait until there are exactly so many steps.

        Raises:
            FailedPrecondition: There are more: what was to happen then cannot happen any more.
        """
        self._waiting += 1
        try:
            while self._count() < steps:
                await self._advanced.wait()
        finally:
            self._waiting -= 1
        if (count := self._count()) > steps:
            raise FailedPrecondition(
                f"at_step_count is {steps}, but the streams have {count} steps: the processes of a run in lock-step "
                "are not at the same round; start the run from scratch",
                reason=Reason.STEP_COUNT_PASSED,
            )

    def advanced(self) -> None:
        """Have every waiting call look at the count again."""
        if self._waiting:
            self._advanced.set()
            self._advanced = asyncio.Event()
