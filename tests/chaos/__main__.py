"""Cause faults at length and write what became of them: `make chaos`.

python -m tests.chaos [--kills 100] [--minutes 60] [--calls 1000000] [--seed 1] [--only replay params ...]

With --only the rows of all else stay in benchmarks/results/faults.json; each says when it was measured. Others' share
of the processors counts the processes that were killed, too: their time is nobody's in the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from benchmarks.rows import FOLDER_VARIABLE, load, machine
from tests.chaos.churn import churn
from tests.chaos.clock import jump_clocks
from tests.chaos.cluster import kill_launcher, kill_services
from tests.chaos.fault_report import FaultReport
from tests.chaos.fuzz import fuzz
from tests.chaos.links import harm_links, restart_in_turn
from tests.chaos.network import FAULTS, harm_params, harm_replay
from tests.chaos.params import kill_params
from tests.chaos.partition import part
from tests.chaos.replay import freeze_replay, kill_replay
from tests.chaos.schedules import simulate
from tests.chaos.soak import LONGEST_PAUSE_S, quickstart, soak

_LONGEST_S = 12.0
"""Of a fault of the network: some are noticed by keepalive, which takes up to ten seconds, and some end before."""

Series = Callable[[Path, int, int], Iterable[FaultReport]]
"""Called with an empty folder, how many faults of each kind are wanted, and a seed."""

SERIES: dict[str, Series] = {
    "replay": lambda folder, kills, seed: [kill_replay(folder, kills, seed, "write")],
    "replay-fsync": lambda folder, kills, seed: [kill_replay(folder, kills, seed, "fsync")],
    "replay-frozen": lambda folder, kills, seed: [freeze_replay(folder, kills // 5 or 1, seed)],
    "params": lambda folder, kills, seed: [kill_params(folder, kills, seed)],
    "network-replay": lambda folder, kills, seed: (
        harm_replay(folder / kind, kind, kills // 5 or 1, seed, _LONGEST_S) for kind in FAULTS
    ),
    "network-params": lambda folder, kills, seed: (
        harm_params(folder / kind, kind, kills // 5 or 1, seed, _LONGEST_S) for kind in FAULTS
    ),
    "network-run": lambda folder, kills, seed: harm_links(folder, kills // 5 or 1, seed, _LONGEST_S),
    "churn": lambda _folder, kills, seed: [churn(10 * kills, 20, seed)],
    "partition": lambda folder, kills, seed: part(folder, kills // 10 or 1, seed),
    "rolling": lambda folder, kills, seed: restart_in_turn(folder, kills // 5 or 1, seed),
    "clock": lambda folder, kills, seed: jump_clocks(folder, kills // 20 or 1, seed),
    "schedules": lambda _folder, kills, _seed: simulate(100 * kills),
    "cluster": lambda folder, kills, seed: kill_services(folder, kills // 5 or 1, seed),
    "soak": lambda folder, minutes, seed: [soak(folder, minutes, seed, quickstart(), LONGEST_PAUSE_S)],
    "fuzz": fuzz,
    "launcher": lambda folder, kills, seed: [kill_launcher(folder, kills // 10 or 1, seed)],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run every series; return 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="faults of each kind; fewer of the slow ones")
    parser.add_argument("--calls", type=int, default=1_000_000, help="of the fuzzing")
    parser.add_argument("--minutes", type=int, default=60, help="how long the soak takes")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--only", nargs="+", choices=SERIES, default=list(SERIES))
    arguments = parser.parse_args(argv)
    path = Path(os.environ.get(FOLDER_VARIABLE, "benchmarks/results")) / "faults.json"
    kept = [] if set(arguments.only) == set(SERIES) else _rows(path)
    clean, day = True, datetime.now(UTC).date().isoformat()
    for name in arguments.only:
        with _quiet(), tempfile.TemporaryDirectory(prefix="tidemill-chaos-") as folder:
            amount = {"soak": arguments.minutes, "fuzz": arguments.calls}.get(name, arguments.kills)
            for report in SERIES[name](Path(folder), amount, arguments.seed):
                clean = clean and report.is_clean
                measured = report.row() | {"seed": arguments.seed, "measured": day} | load()
                sys.stdout.write(json.dumps(measured) + "\n")
                sys.stdout.flush()
                kept = [row for row in kept if row["name"] != report.name] + [measured]
                path.write_text(json.dumps({"machine": machine(), "rows": kept}, indent=1) + "\n", encoding="utf-8")
    return 0 if clean else 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing of clients that reconnect, which is what they are here for."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that were measured before."""
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        return []
    return rows


if __name__ == "__main__":
    sys.exit(main())
