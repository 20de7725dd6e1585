"""What the replay service sustains: inserts, samples, both at once, and the memory of what it holds.

The server and its clients are processes of their own, on loopback. Writers compress and append real Atari frames of
five games, one item a step; the sampler decodes prioritized batches into training-ready transitions (3 steps, stacks
of 4) and sets the priorities of every batch.

    python -m benchmarks.replay [--runs 5] [--seconds 5] [--observations 200000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.replay_frames import cached_steps
from benchmarks.replay_roles import TABLE
from tidemill.replay.client import ReplayClient

_RESULTS = Path(__file__).parent / "results" / "replay.json"
_FILL_STEPS = 120_000
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Server:
    """A replay process."""

    address: str
    pid: int

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Return the processor time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Run a replay server with the benchmark's table."""
    command = [sys.executable, "-m", "services.replay", "--replay.server.address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"address=(\S+)", process.stderr.readline())
        assert found is not None
        with ReplayClient(found[1]) as client:
            client.create_table(TABLE)
        yield Server(found[1], process.pid)
    finally:
        process.terminate()
        process.communicate()


def role(name: str, address: str, **options: object) -> subprocess.Popen[str]:
    """Start a client process."""
    flags = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.replay_roles", name, address, *flags], stdout=subprocess.PIPE, text=True
    )


def rate(process: subprocess.Popen[str]) -> float:
    """Wait for a client process; return the rate it measured."""
    output, _ = process.communicate(timeout=_TIMEOUT_S)
    return float(json.loads(output))


def insert(writers: int, seconds: float) -> float:
    """Return inserted transitions a second of some writers together."""
    with server() as running:
        processes = [role("write", running.address, actor_id=f"w{i}", seconds=seconds) for i in range(writers)]
        return sum(map(rate, processes))


def sampled(batch_size: int, seconds: float) -> float:
    """Return sampled transitions a second of one client."""
    with server() as running:
        rate(role("write", running.address, limit=_FILL_STEPS, seconds=60))
        return rate(role("sample", running.address, batch_size=batch_size, seconds=seconds))


def mixed(seconds: float) -> tuple[float, float]:
    """Return inserted and sampled transitions a second of one writer and one sampler at once."""
    with server() as running:
        rate(role("write", running.address, actor_id="filler", limit=_FILL_STEPS, seconds=60))
        writer = role("write", running.address, seconds=seconds)
        sampler = role("sample", running.address, seconds=seconds)
        return rate(writer), rate(sampler)


def memory(observations: int) -> float:
    """Return the growth of the server's resident memory for each observation, in bytes."""
    with server() as running:
        before = running.rss_bytes()
        rate(role("play", running.address, limit=observations))
        with ReplayClient(running.address) as client:
            stored = client.describe_table(TABLE.name).env_steps
        return (running.rss_bytes() - before) / stored


def idle(seconds: float) -> tuple[float, float]:
    """Return the resident memory in MiB and the share of a core of a server that nobody calls."""
    with server() as running:
        time.sleep(1)
        before = running.cpu_s()
        time.sleep(seconds)
        return running.rss_bytes() / 2**20, (running.cpu_s() - before) / seconds * 100


def row(name: str, unit: str, values: list[float]) -> dict[str, object]:
    """Return a result; `spread` is the range over the median."""
    median = statistics.median(values)
    spread = (max(values) - min(values)) / median if median else 0.0
    return {
        "name": name,
        "unit": unit,
        "ours": round(median, 1),
        "peer": None,
        "ratio": None,
        "runs": len(values),
        "spread": round(spread, 3),
    }


def measure(runs: int, seconds: float, observations: int) -> Iterator[dict[str, object]]:
    """Yield every result."""
    for writers in (1, 2):
        values = [insert(writers, seconds) for _ in range(runs)]
        yield row(f"insert, {writers} writer{'s' * (writers > 1)}", "transitions/s", values)
    for batch_size in (256, 512):
        values = [sampled(batch_size, seconds) for _ in range(runs)]
        yield row(f"sample decoded, prioritized with updates, batch {batch_size}", "transitions/s", values)
    both = [mixed(seconds) for _ in range(runs)]
    yield row("mixed, inserted", "transitions/s", [inserts for inserts, _ in both])
    yield row("mixed, sampled", "transitions/s", [samples for _, samples in both])
    rss, cpu = zip(*(idle(seconds) for _ in range(runs)), strict=True)
    yield row("idle server, resident", "MiB", list(rss))
    yield row("idle server, processor", "% of a core", list(cpu))
    if observations:
        per_step = memory(observations)
        yield row(f"memory growth over {observations:,} observations", "bytes/observation", [per_step])
        yield row("memory growth for 1M observations at that rate", "GiB", [per_step * 1e6 / 2**30])


def machine() -> dict[str, object]:
    """Describe where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def main() -> None:
    """Measure, print a table and write benchmarks/results/replay.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="measurements of each figure")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--observations", type=int, default=200_000, help="for the memory; 0 leaves it out")
    arguments = parser.parse_args()
    cached_steps()  # recorded now rather than in the first measurement
    rows = []
    for result in measure(arguments.runs, arguments.seconds, arguments.observations):
        rows.append(result)
        print(
            f"{result['name']:<62}{result['ours']:>12,.1f} {result['unit']:<20} spread {result['spread']:.0%}",
            flush=True,
        )
    _RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
