"""Curves of a run that no single service has: those of its actors and its replay service together."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from tidemill.curves import CLUSTER, CURVES, ENV_FAILURES, EPISODE_RETURN, LAST_ENV_FAILURE, SideCurves
from tidemill.replay.table_config import TableDescription
from tidemill.services.launcher.view.rate_meter import RateMeter
from tidemill.services.launcher.view.status import ClusterStatus

_TAIL_BYTES = 4 * 1024
_SAME_S = 300.0


def training_return(run: Path) -> float | None:
    """Return the mean return of the newest training episodes of the actors that act; None without any."""
    found = [value for line in _acting(run).values() if isinstance(value := line.get(EPISODE_RETURN), float)]
    return fmean(found) if found else None


def acts(run: Path) -> bool:
    """True if the newest point of an actor's curve counts steps; they may not be stored yet."""
    return any(bool(line.get("actor/env_steps_per_s")) for line in _acting(run).values())


def env_failures(run: Path) -> dict[str, dict[str, int]]:
    """Return the numbers of environment failures of each actor that acts, since it started, by kind, without 0."""
    prefix = f"actor/{ENV_FAILURES}"
    return {
        actor: {
            name.removeprefix(prefix): int(value)
            for name, value in line.items()
            if name.startswith(prefix) and isinstance(value, float) and value
        }
        for actor, line in _acting(run).items()
    }


def last_env_failure(run: Path) -> str:
    """Return why an environment of the actors that act failed last; empty if it is not known."""
    found = [line for line in _acting(run).values() if f"actor/{LAST_ENV_FAILURE}" in line]
    return str(max(found, key=lambda line: float(line["time"]))[f"actor/{LAST_ENV_FAILURE}"]) if found else ""


def _acting(run: Path) -> dict[str, dict[str, Any]]:
    """Return the newest line of each actor's curve.

    Each actor writes its curve to `curves/ACTOR.jsonl`. One that has written nothing for five minutes while
    others did acts no longer.
    """
    found = {}
    for file in sorted((run / CURVES).glob("*.jsonl")):
        line = _last_line(file)
        if any(name.startswith("actor/") for name in line):
            found[file.stem] = float(line.get("time", 0.0)), line
    newest_s = max((time_s for time_s, _ in found.values()), default=0.0)
    return {actor: line for actor, (time_s, line) in found.items() if newest_s - time_s < _SAME_S}


def by_kind(failures: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the numbers of failures of all actors together, by kind."""
    total: Counter[str] = Counter()
    for own in failures.values():
        total.update(own)
    return dict(total)


def describe_failures(failures: Mapping[str, Mapping[str, int]]) -> str:
    """Return the numbers of failures by kind, as `2 hung, 3 raised`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind(failures).items()))


def _last_line(file: Path) -> dict[str, Any]:
    """Return the last whole line of a file of JSON; nothing if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        with file.open("rb") as content:
            content.seek(max(content.seek(0, 2) - _TAIL_BYTES, 0))
            lines = content.read(_TAIL_BYTES).splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if whole and isinstance(document := json.loads(whole[-1]), dict):
            return document
    return {}


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
        self._rates: defaultdict[int, tuple[RateMeter, RateMeter]] = defaultdict(lambda: (RateMeter(), RateMeter()))

    def add(self, status: ClusterStatus) -> None:
        """Write a point if it is time and the learner answers with its counts."""
        now_s, learner = self._clock(), status.counting
        if not self._every_s or now_s < self._next_s or learner is None:
            return
        self._next_s = now_s + self._every_s
        scalars = {"actors/env_steps_per_s": status.env_steps_per_s}
        if status.policy_lag is not None:
            scalars["actors/policy_lag"] = status.policy_lag
        if parts := {
            shard: table
            for shard, tables in enumerate(status.tables)
            for table in tables
            if table.config.name == self._table
        }:
            scalars |= self._of_table(parts, now_s)
        self._curves.write(scalars, env_steps=learner.env_steps, learner_steps=learner.learner_steps)

    def close(self) -> None:
        """Close the files."""
        self._curves.close()

    def _of_table(self, parts: Mapping[int, TableDescription], now_s: float) -> dict[str, float]:
        """Return the fill and the rates of the shards that answer; rates are added, as the sum of counts may fall."""
        rates = [(self._rates[shard], part) for shard, part in parts.items()]
        return {
            "replay/fill": sum(part.items for part in parts.values())
            / sum(part.config.max_items for part in parts.values()),
            "replay/inserts_per_s": sum(inserts.update(now_s, part.inserts) for (inserts, _), part in rates),
            "replay/samples_per_s": sum(samples.update(now_s, part.samples) for (_, samples), part in rates),
        }
