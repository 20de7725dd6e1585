"""The one place where calls wait: for the rate limiter, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from services.replay.table import Table

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
    """Adds up the time during which somebody waits."""

    total_s: float = 0.0
    waiting: int = 0
    since: float = 0.0


@dataclass
class _Demand:
    """Batches that calls wait for at one table: how many items, and whether without replacement."""

    batches: list[tuple[int, bool]] = field(default_factory=list)


class Gate:
    """Runs inserts and samples when their tables admit them, and lets them wait until then.

    Whatever is admitted runs at once, within the event loop, so that nothing can come between the decision and the
    deed. Every change of a table must be followed by `changed`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create an open gate; `clock` returns seconds and never goes back."""
        self._clock = clock
        self._waiting: dict[Side, list[_Waiting]] = {"insert": [], "sample": []}
        self._demands: dict[Table, _Demand] = {}
        self._watches: dict[tuple[Table, Side], _Stopwatch] = {}

    async def insert(self, tables: Sequence[Table], act: Callable[[], T]) -> T:
        """Run an insert into tables once all of them admit it; return its result or raise its error."""
        tables = tuple(tables)
        return await self._pass("insert", tables, lambda: all(map(self._admits_insert, tables)), act)

    async def sample(
        self, table: Table, batch_size: int, without_replacement: bool, act: Callable[[], T], *, limited: bool = True
    ) -> T:
        """Run a sample of a table once it admits a batch of that size; return its result or raise its error.

        A sample that is not `limited` waits for items only, not for the rate limiter.
        """
        demand = (batch_size, without_replacement)
        admitted = table.can_sample if limited else table.has_draws
        batches = self._demands.setdefault(table, _Demand()).batches
        batches.append(demand)
        try:
            if not table.has_draws(*demand):
                self.changed()  # an insert held back by the ratio may go on now that somebody waits for items
            return await self._pass("sample", (table,), lambda: admitted(*demand), act)
        finally:
            batches.remove(demand)

    def changed(self) -> None:
        """Let go on whoever may, after any change of a table."""
        while self._run_next("insert") or self._run_next("sample"):
            pass

    def blocked_s(self, table: Table, side: Side) -> float:
        """Return the time during which at least one call of a side waited at a table, in seconds."""
        watch = self._watches.get((table, side), _Stopwatch())
        return watch.total_s + (self._clock() - watch.since if watch.waiting else 0.0)

    def forget_blocked(self, table: Table) -> None:
        """Zero both times of a table."""
        for side in ("insert", "sample"):
            if watch := self._watches.get((table, side)):
                watch.total_s, watch.since = 0.0, self._clock()

    def _admits_insert(self, table: Table) -> bool:
        """Return whether a table admits an insert: by its limiter, or because a sample waits for more items.

        Without the second rule an insert that waits for samples and a sample that waits for items could wait for
        each other, when items may be sampled only so often.
        """
        demand = self._demands.get(table)
        starving = demand is not None and any(not table.has_draws(*batch) for batch in demand.batches)
        return starving or table.can_insert()

    async def _pass(
        self, side: Side, tables: tuple[Table, ...], admitted: Callable[[], bool], act: Callable[[], T]
    ) -> T:
        queue = self._waiting[side]
        ahead = any(not set(tables).isdisjoint(other.tables) for other in queue)
        if not ahead and admitted():
            result = act()
            self.changed()
            return result
        waiting = _Waiting(admitted, act, tables, asyncio.get_running_loop().create_future())
        queue.append(waiting)
        self._start(side, tables)
        try:
            return await waiting.future  # type: ignore[return-value]
        finally:
            self._stop(side, tables)
            if waiting in queue:  # cancelled: others may be next now
                queue.remove(waiting)
                self.changed()

    def _run_next(self, side: Side) -> bool:
        """Run the first waiting call that is admitted, none before it sharing a table; return whether there was."""
        passed: set[Table] = set()
        for waiting in self._waiting[side]:
            if passed.isdisjoint(waiting.tables) and not waiting.future.done() and waiting.admitted():
                self._waiting[side].remove(waiting)
                _settle(waiting)
                return True
            passed.update(waiting.tables)
        return False

    def _start(self, side: Side, tables: tuple[Table, ...]) -> None:
        for table in tables:
            watch = self._watches.setdefault((table, side), _Stopwatch())
            if not watch.waiting:
                watch.since = self._clock()
            watch.waiting += 1

    def _stop(self, side: Side, tables: tuple[Table, ...]) -> None:
        for table in tables:
            watch = self._watches[table, side]
            watch.waiting -= 1
            if not watch.waiting:
                watch.total_s += self._clock() - watch.since


def _settle(waiting: _Waiting) -> None:
    try:
        waiting.future.set_result(waiting.act())
    except Exception as error:
        waiting.future.set_exception(error)
