"""The curves of a run that no single service knows: what its actors and its replay service do together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tidemill.curves import CLUSTER, SideCurves
from tidemill.replay.table_config import TableDescription
from tidemill.services.launcher.view.rate_meter import RateMeter
from tidemill.services.launcher.view.status import ClusterStatus


class ClusterCurves:
    """Points in TensorBoard's run `cluster`, over agent decisions: `actors/env_steps_per_s`, `replay/fill` and more."""

    def __init__(self, run: Path, table: str, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet.

        Args:
            run: The run's folder.
            table: Name of the run's table; its parts on several shards are added up.
            every_s: Least seconds between two points; 0 writes none.
            clock: Monotonic time in seconds.
        """
        self._curves, self._table, self._every_s, self._clock = SideCurves(run, CLUSTER), table, every_s, clock
        self._next_s = clock()
        self._inserts, self._samples = RateMeter(), RateMeter()

    def add(self, status: ClusterStatus) -> None:
        """Write a point if it is time and the learner answers."""
        now_s = self._clock()
        if not self._every_s or now_s < self._next_s or status.learner is None or not status.learner_answers:
            return
        self._next_s = now_s + self._every_s
        scalars = {"actors/env_steps_per_s": status.env_steps_per_s}
        if status.policy_lag is not None:
            scalars["actors/policy_lag"] = status.policy_lag
        if parts := [part for part in status.tables if part.config.name == self._table]:
            scalars |= self._of_table(parts, now_s)
        self._curves.write(scalars, env_steps=status.learner.env_steps, learner_steps=status.learner.learner_steps)

    def close(self) -> None:
        """Close the files."""
        self._curves.close()

    def _of_table(self, parts: list[TableDescription], now_s: float) -> dict[str, float]:
        return {
            "replay/fill": sum(part.items for part in parts) / sum(part.config.max_items for part in parts),
            "replay/inserts_per_s": self._inserts.update(now_s, sum(part.inserts for part in parts)),
            "replay/samples_per_s": self._samples.update(now_s, sum(part.samples for part in parts)),
        }
