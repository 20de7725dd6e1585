"""Rates of the replay service with many writers, and after its table has turned over many times.

    python -m benchmarks.replay_endurance [--runs 3] [--seconds 8] [--turnovers 6]

Many writers: 256 append streams of four processes against 2 of two, at the same total rate of inserts, with one
sampler. Turnovers: a table of 100,000 items is overwritten again and again, sampled in between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

from benchmarks.replay import machine, rate
from benchmarks.replay_contenders import Server, Tidemill
from benchmarks.replay_frames import cached_steps
from benchmarks.replay_roles import TABLE

_RESULTS = Path(__file__).parent / "results" / "replay_endurance.json"
_STEPS_PER_S = 20_000.0
_START_UP_S = 6.0  # of a process with its streams, before the sampler's measurement
_TURNOVER_ITEMS = 100_000
_TIMEOUT_S = 600.0


def with_writers(processes: int, streams: int, seconds: float) -> dict[str, float]:
    """Return the sampler's rate, and the writers', with some append streams over some processes."""
    ours = Tidemill()
    with ours.server() as running:
        rate(ours.role("write", running.address, limit=_TURNOVER_ITEMS, seconds=60))
        share = {"streams": streams // processes, "steps_per_s": _STEPS_PER_S / processes}
        lasting = seconds + _START_UP_S
        writers = [
            ours.role("pace", running.address, actor_id=f"w{i}", seconds=lasting, **share) for i in range(processes)
        ]
        sampled = rate(ours.role("sample", running.address, seconds=seconds))
        written = [outcome(writer) for writer in writers]
    return {
        "sampled": sampled,
        "written": sum(part["rate"] for part in written),
        "fewest": min(part["fewest"] for part in written),
        "most": max(part["most"] for part in written),
    }


def outcome(process: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for a client process that prints several figures."""
    output, _ = process.communicate(timeout=_TIMEOUT_S)
    return {str(name): float(value) for name, value in json.loads(output).items()}


def turnovers(count: int, seconds: float) -> list[dict[str, float]]:
    """Return insert rate, sample rate and resident MiB of each turnover of a small table."""
    ours = Tidemill(table=replace(TABLE, max_items=_TURNOVER_ITEMS))
    with ours.server() as running:
        return [turnover(ours, running, number, seconds) for number in range(count)]


def turnover(ours: Tidemill, running: Server, number: int, seconds: float) -> dict[str, float]:
    """Overwrite the whole table once and sample it; the server's processor time depends least on the machine's mood."""
    before = running.cpu_s()
    inserted = rate(ours.role("write", running.address, actor_id=f"t{number}", limit=_TURNOVER_ITEMS, seconds=60))
    insert_cpu_s = running.cpu_s() - before
    sampled = rate(ours.role("sample", running.address, max_items=_TURNOVER_ITEMS, seconds=seconds))
    return {
        "inserted": inserted,
        "insert_cpu_s": insert_cpu_s,
        "sampled": sampled,
        "resident_mib": running.rss_bytes() / 2**20,
    }


def main() -> None:
    """Measure, print and write benchmarks/results/replay_endurance.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="pairs of measurements with few and many writers")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement")
    parser.add_argument("--turnovers", type=int, default=6, help="how often the table is overwritten")
    a = parser.parse_args()
    cached_steps()
    described, few, many = machine(), [], []
    for _ in range(a.runs):
        few.append(with_writers(2, 2, a.seconds))
        many.append(with_writers(4, 256, a.seconds))
        print("2 streams", few[-1], "256 streams", many[-1], flush=True)
    ratios = [b["sampled"] / a["sampled"] for a, b in zip(few, many, strict=True)]
    print(f"sample rate with 256 streams over that with 2: {statistics.median(ratios):.2f}")
    turned = turnovers(a.turnovers, a.seconds)
    for number, figures in enumerate(turned):
        print(f"turnover {number + 1}", figures, flush=True)
    document = {"machine": described, "two_streams": few, "many_streams": many, "ratios": ratios, "turnovers": turned}
    _RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
