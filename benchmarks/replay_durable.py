"""Costs and benefits of the log on disk: inserts with it, a restart, snapshots under load, a table larger than memory.

    python -m benchmarks.replay_durable [--runs 3] [--seconds 5] [--items 1000000] [--folder DIR]

Everything is measured on Tidemill alone: in memory, with the log, and with the log waiting for the disk, by turns.
The restart is of a server that was killed, from the start of the process to the first sampled batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.replay import insert, rate
from benchmarks.replay_contenders import Server, Tidemill
from benchmarks.replay_endurance import outcome
from benchmarks.replay_frames import cached_steps
from benchmarks.replay_roles import TABLE
from benchmarks.rows import Row, row, write
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler

_SNAPSHOTS = 5
_LARGER = 4  # times its chunks in memory
_RECORD_BYTES, _ITEM_BYTES = 256, 64  # the server counts for each chunk and item beside the bytes of chunks
_FILL_S = 600.0


@contextmanager
def durable(root: Path, *options: str) -> Iterator[Tidemill]:
    """Give a contender with a log in a new folder."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        yield Tidemill("--replay.storage.folder", folder, *options)


def inserts(root: Path, runs: int, seconds: float) -> Iterator[Row]:
    """Yield insert rates with the log over those in memory."""
    memory, written, synced = [], [], []
    for _ in range(runs):
        memory.append(insert(Tidemill(), 1, seconds))
        with durable(root) as contender:
            written.append(insert(contender, 1, seconds))
        with durable(root, "--replay.storage.ack", "fsync") as contender:
            synced.append(insert(contender, 1, seconds))
    yield row("insert, 1 writer, acknowledged after the write; peer: in memory", "transitions/s", written, memory)
    yield row("insert, 1 writer, acknowledged after fsync; peer: in memory", "transitions/s", synced, memory)


def restart(root: Path, runs: int, seconds: float, items: int) -> Iterator[Row]:
    """Yield the time of a restart with a full table, and what snapshots of it do to calls."""
    with durable(root) as contender:
        with contender.server() as running:
            rate(contender.role("write", running.address, limit=items, seconds=_FILL_S))
            yield from snapshots(contender, running, runs, seconds)
            os.kill(running.pid, signal.SIGKILL)
        took = []
        for _ in range(runs):
            began = time.monotonic()
            with contender.server() as running, ReplaySampler([running.address], TABLE, 256) as stream:
                next(stream)
                took.append(time.monotonic() - began)
                os.kill(running.pid, signal.SIGKILL)
        yield row(f"restart with {items:,} items to the first batch", "s", took, [])


def snapshots(contender: Tidemill, running: Server, runs: int, seconds: float) -> Iterator[Row]:
    """Yield how long calls take while snapshots are taken, over how long they take without."""
    without, during = [], []
    with ReplayClient(running.address, deadline_s=60.0) as client:
        for run in range(runs):
            without.append(outcome(contender.role("probe", running.address, actor_id=f"a{run}", seconds=seconds)))
            role = contender.role("probe", running.address, actor_id=f"b{run}", seconds=seconds)
            while role.poll() is None:
                client.checkpoint()
                time.sleep(seconds / _SNAPSHOTS)
            during.append(outcome(role))
    for call in ("insert", "sample"):
        for what in ("p99", "longest"):
            key = f"{call}_{what}_ms"
            name = f"{call}, {what} call while snapshots are taken; peer: without"
            yield row(name, "ms", [figures[key] for figures in during], [figures[key] for figures in without])


def larger_than_memory(root: Path, runs: int, seconds: float, items: int) -> Iterator[Row]:
    """Yield the sample rate of a table four times as large as its chunks in memory over that of one in memory."""
    ours, peer = [], []
    for _ in range(runs):
        with durable(root) as contender, contender.server() as running:
            rate(contender.role("write", running.address, limit=items, seconds=_FILL_S))
            with ReplayClient(running.address) as client:
                described = client.describe_table(TABLE.name)
            stored_mib = described.chunk_bytes / 2**20
            beside_mib = (_RECORD_BYTES * described.chunks + _ITEM_BYTES * described.items) / 2**20
            peer.append(rate(contender.role("sample", running.address, seconds=seconds)))
        budget = max(1, round(2 * (stored_mib / _LARGER + beside_mib)))  # of which a half is for what is stored
        with durable(root, "--replay.max-memory-mib", str(budget)) as contender, contender.server() as running:
            rate(contender.role("write", running.address, limit=items, seconds=_FILL_S))
            ours.append(rate(contender.role("sample", running.address, seconds=seconds)))
    name = f"sample, {items:,} items of {stored_mib:.0f} MiB with {budget} MiB of memory; peer: all in memory"
    yield row(name, "transitions/s", ours, peer)


def main() -> None:
    """Measure, print and write benchmarks/results/replay_durable.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="measurements of each figure")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the table that is restarted")
    parser.add_argument("--folder", type=Path, help="where logs are written; a folder on the disk to be measured")
    a = parser.parse_args()
    cached_steps()
    with tempfile.TemporaryDirectory(dir=a.folder) as root:
        rows = [
            *inserts(Path(root), a.runs, a.seconds),
            *restart(Path(root), a.runs, a.seconds, a.items),
            *larger_than_memory(Path(root), a.runs, a.seconds, a.items // 4),
        ]
    write("replay_durable", rows)


if __name__ == "__main__":
    main()
