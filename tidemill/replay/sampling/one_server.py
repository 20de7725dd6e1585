"""One server that has a whole table: it decides when a batch is drawn, or a schedule does."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.replay.sampling.plan import Draw, Plan
from tidemill.replay.sampling.schedule import Schedule


class OneServer:
    """Asks for whole batches, as many as may be under way. The server's rate limiter holds them back (ADR 0034).

    With a schedule each has a number, by which it is drawn. What was not taken when a call ends is drawn again by the
    number that it had.
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        """Begin without the server."""
        self._schedule = schedule
        self._next = self._taken = schedule.first if schedule is not None else 0
        self._server: str | None = None
        self._by_credit: Plan | None = None  # the same for each batch

    def join(self, shard: str) -> None:
        """The server is there."""
        self._server = shard

    def leave(self, _shard: str) -> None:
        """The server is away."""
        self._server = None
        self._next = self._taken

    def asked(self, draw: Draw) -> None:
        """Nothing follows: the server counts."""

    def answered(self, draw: Draw, items: int, total_weight: float, diff: float) -> None:
        """Nothing follows: the server counts."""

    def plan(self, batch_size: int) -> Plan | None:
        """Return the draw of a whole batch; None while the server is away."""
        if self._server is None:
            return None
        if self._schedule is None:
            if self._by_credit is None:
                self._by_credit = Plan({self._server: 1.0}, (Draw(self._server, batch_size, counted=None),))
            return self._by_credit
        seeded = self._schedule.draw_of(self._next)
        self._next += 1
        draw = Draw(self._server, batch_size, 0, seeded.seed, seeded.at_step_count)
        return Plan({self._server: 1.0}, (draw,))

    def replan(self, _plan: Plan, _lost: Collection[Draw]) -> Plan | None:
        """Return None: no other server can make up for it."""
        return None

    def taken(self) -> None:
        """The next batch was taken."""
        self._taken += 1

    def again(self) -> None:
        """The batch that was taken last is to be drawn once more; `leave` follows."""
        self._taken -= 1
