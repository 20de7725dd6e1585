"""Rates that the replay service sustains, beside Reverb in the same run: inserts, samples, both at once, memory.

Servers and clients are separate processes, on loopback; ours use `tidemill.replay` alone. Writers append real
Atari frames of five games by `ReplayWriter`, one item a step; the sampler makes training-ready transitions (3 steps,
stacks of 4) of the batches of a `ReplayDataset` and sets the priorities of every one. The contenders take turns within
each run, so that a drift of the machine meets both; a ratio is the median of the runs' ratios. Without `--peer` only
Tidemill is measured. The file is written after each row, so that an interrupted benchmark keeps what it has; its
`machine.quiet` says whether other programs left the cores alone until then.

    python -m benchmarks.replay [--runs 5] [--seconds 5] [--observations 1000000] [--peer .venv-reverb/bin/python]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.replay_contenders import Contender, Reverb, Tidemill
from benchmarks.replay_frames import cached_steps
from benchmarks.rows import load

_RESULTS = Path(__file__).parent / "results" / "replay.json"
_FILL_ITEMS = 100_000
_TIMEOUT_S = 1800.0
_BEST_CHUNK_LENGTH = 40  # of Reverb's for memory

Row = dict[str, object]


def rate(process: subprocess.Popen[str]) -> float:
    """Wait for a client process; return the rate it measured."""
    output, _ = process.communicate(timeout=_TIMEOUT_S)
    return float(json.loads(output))


def insert(contender: Contender, writers: int, seconds: float) -> float:
    """Return inserted transitions per second of some writers together."""
    with contender.server() as running:
        roles = [contender.role("write", running.address, actor_id=f"w{i}", seconds=seconds) for i in range(writers)]
        return sum(map(rate, roles))


def sampled(contender: Contender, batch_size: int, seconds: float, **options: int) -> float:
    """Return sampled transitions per second of one client."""
    with contender.server() as running:
        rate(contender.role("write", running.address, limit=_FILL_ITEMS, seconds=60))
        return rate(contender.role("sample", running.address, batch_size=batch_size, seconds=seconds, **options))


def mixed(contender: Contender, seconds: float) -> tuple[float, float]:
    """Return inserted and sampled transitions per second of one writer and one sampler at once."""
    with contender.server() as running:
        rate(contender.role("write", running.address, actor_id="filler", limit=_FILL_ITEMS, seconds=60))
        writer = contender.role("write", running.address, seconds=seconds)
        sampler = contender.role("sample", running.address, seconds=seconds)
        return rate(writer), rate(sampler)


def memory(contender: Contender, observations: int) -> float:
    """Return the growth of the server's resident memory with a number of observations, in GiB."""
    with contender.server() as running:
        before = running.rss_bytes()
        rate(contender.role("write", running.address, limit=observations, seconds=_TIMEOUT_S))
        return (running.rss_bytes() - before) / 2**30


def idle(contender: Contender, seconds: float) -> tuple[float, float]:
    """Return the resident memory in MiB and the share of a core of a server that nobody calls."""
    with contender.server() as running:
        time.sleep(1)
        before = running.cpu_s()
        time.sleep(seconds)
        return running.rss_bytes() / 2**20, (running.cpu_s() - before) / seconds * 100


def row(name: str, unit: str, ours: list[float], peer: list[float], *, less_is_better: bool = False) -> Row:
    """Return a result.

    `ratio` says how many times better we are: the median over the runs. `spread` is the range of our values over
    their median; `ratios` the smallest and largest ratio.
    """
    ratios = [(b / a if less_is_better else a / b) for a, b in zip(ours, peer, strict=False)]
    median = statistics.median(ours)
    return {
        "name": name,
        "unit": unit,
        "ours": round(median, 3 if median < 10 else 0),
        "peer": round(statistics.median(peer), 3 if median < 10 else 0) if peer else None,
        "ratio": round(statistics.median(ratios), 2) if ratios else None,
        "runs": len(ours),
        "spread": round((max(ours) - min(ours)) / median, 3) if median else 0.0,
        "ratios": [round(min(ratios), 2), round(max(ratios), 2)] if ratios else None,
    }


def measure(ours: Contender, peer: Reverb | None, runs: int, seconds: float) -> Iterator[Row]:
    """Yield the rates."""

    def both(figure: Callable[[Contender], float]) -> tuple[list[float], list[float]]:
        a, b = [], []
        for _ in range(runs):
            a.append(figure(ours))
            b += [figure(peer)] if peer else []
        return a, b

    unit = "transitions/s"
    for writers in (1, 2):
        name = f"insert, {writers} writer{'s' * (writers > 1)}, Reverb"
        yield row(name, unit, *both(lambda c, n=writers: insert(c, n, seconds)))  # type: ignore[misc]
    for batch in (256, 512):
        name = f"sample decoded, prioritized with updates, batch {batch}, Reverb"
        yield row(name, unit, *both(lambda c, n=batch: sampled(c, n, seconds)))  # type: ignore[misc]
    inline = [sampled(ours, 512, seconds, decode_threads=threads) for _ in range(runs) for threads in (0, 2)]
    yield row("sample decoded in the training thread, batch 512; peer: in two others", unit, inline[::2], inline[1::2])
    pairs = [[mixed(c, seconds) for c in (ours, peer) if c] for _ in range(runs)]
    for part, name in enumerate(("inserted", "sampled")):
        values = [[pair[part] for pair in run] for run in pairs]
        yield row(f"mixed, {name}, Reverb", unit, [v[0] for v in values], [v[1] for v in values if peer])


def footprint(ours: Contender, peer_python: Path | None, runs: int, seconds: float, observations: int) -> Iterator[Row]:
    """Yield memory and what an idle server costs."""
    rss, cpu = zip(*(idle(ours, seconds) for _ in range(runs)), strict=True)
    yield row("idle server, resident", "MiB", list(rss), [])
    yield row("idle server, processor", "% of a core", list(cpu), [])
    if not observations:
        return
    grown = [memory(ours, observations)]
    peers = {"Reverb": 0, f"Reverb with chunks of {_BEST_CHUNK_LENGTH}": _BEST_CHUNK_LENGTH}
    for name, chunk_length in peers.items():
        theirs = [memory(Reverb(peer_python, chunk_length), observations)] if peer_python else []
        yield row(f"memory growth, {observations:,} observations, {name}", "GiB", grown, theirs, less_is_better=True)


def machine() -> dict[str, object]:
    """Describe where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}


def main() -> None:
    """Measure, print a table and write benchmarks/results/replay.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="measurements of each figure")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--observations", type=int, default=1_000_000, help="for the memory; 0 leaves it out")
    parser.add_argument("--peer", type=Path, help="interpreter of an environment with dm-reverb")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="where the results are written")
    a = parser.parse_args()
    cached_steps()  # recorded now rather than in the first measurement
    described, rows, ours = machine(), [], Tidemill(roles="benchmarks.replay_front_door")
    results = measure(ours, Reverb(a.peer) if a.peer else None, a.runs, a.seconds)
    print(f"{'':<78}{'ours':>12}{'peer':>12}{'ratio':>8}{'spread':>8}")
    for part in (results, footprint(ours, a.peer, a.runs, a.seconds, a.observations)):
        for result in part:
            rows.append(result)
            document = {"machine": described | load(), "seconds": a.seconds, "rows": rows}
            a.out.write_text(json.dumps(document, indent=1) + "\n")
            peer, ratio = (result[key] if result[key] is not None else "" for key in ("peer", "ratio"))
            label = f"{result['name']} [{result['unit']}]"
            print(
                f"{label:<78}{result['ours']:>12,}{peer:>12,}" if peer else f"{label:<78}{result['ours']:>12,}{'':>12}",
                end="",
            )
            print(f"{ratio:>8}{result['spread']:>8.0%}", flush=True)
    if not load()["quiet"]:
        print("other programs kept the cores busy meanwhile, see machine.others_cores: measure again when they rest")


if __name__ == "__main__":
    main()
