"""A learner's mirror while its table is overwritten: `python -m benchmarks.mirror_turnover --minutes 30`.

A writer in a separate process appends made-up Atari steps at a steady pace; a learner's feed takes a few batches a
second and drops them. Rows: what of the mirror's rows is in memory at the end, against what the mirror reports; and
how the memory of the feed's process grows from the tenth turnover to the end, by a straight line through all samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.feed import FEEDS, Feed, feed
from benchmarks.learner_cases import CASES
from benchmarks.learner_feed import random_columns, servers
from benchmarks.rows import Row, row, write
from tidemill.config.load import write_document
from tidemill.config.sections import RunConfig
from tidemill.process import keep_freed_memory
from tidemill.replay import codec
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.writing.appender import StreamAppender

_CASE = "nature_dueling_dqn_32"
_ITEMS = 20_000
_BATCHES_PER_S = 20.0
_SAMPLE_S = 5.0
_SETTLED_TURNOVERS = 10
_DIFFERENT_CHUNKS = 64
_MIB = 2.0**20
_PAGE_BYTES = 4096


def append(address: str, steps_per_s: float) -> None:
    """Append a stream until this process is ended."""
    with ReplayClient(address) as client:
        (table,) = (found.config for found in client.list_tables())
    rng, length = np.random.default_rng(1), 16
    blocks = [codec.encode(table.signature, random_columns(table, length, rng)) for _ in range(_DIFFERENT_CHUNKS)]
    with StreamAppender(address, "turnover", 1, table.signature, [table.name], length) as appender:
        first, due = 0, time.monotonic()
        while True:
            offsets = np.arange(max(table.max_item_steps - 1 - first, 0), length)
            ones = np.ones(len(offsets))
            lengths = np.full_like(offsets, table.max_item_steps)
            items = ItemBatch(0, np.zeros_like(offsets), offsets, lengths, ones)
            block = blocks[first // length % _DIFFERENT_CHUNKS]
            if not appender.append([Chunk(0, first, length, length, 1, block)], [items]):
                raise SystemExit("the replay service does not take what it is sent")
            first, due = first + length, due + length / steps_per_s
            time.sleep(max(due - time.monotonic(), 0.0))


def resident_bytes() -> int:
    """Resident memory of this process in bytes (proc(5): statm)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def resident_rows_bytes(mirror: TableMirror) -> int:
    """Resident bytes of the pages that hold a mirror's rows (proc(5): pagemap)."""
    pages = 0
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for column in mirror.columns.values():
            first, last = column.ctypes.data // _PAGE_BYTES, -(-(column.ctypes.data + column.nbytes) // _PAGE_BYTES)
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (last - first)), np.uint64)
            pages += int((entries >> np.uint64(63)).sum())
    return pages * _PAGE_BYTES


def watch(config: RunConfig, address: str, what: Feed, seconds: float) -> dict[str, list[float]]:
    """Take batches for so long; return the times, the bytes in memory since before, and the items ever stored."""
    before, found = resident_bytes(), dict[str, list[float]](time=[], resident=[], inserts=[])
    with ReplayClient(address) as client, feed(config, address, what, 1) as loader:
        started = due = sampled = time.monotonic()
        while time.monotonic() - started < seconds:
            loader.take(1.0)
            due += 1.0 / _BATCHES_PER_S
            if time.monotonic() - sampled >= _SAMPLE_S:
                sampled = time.monotonic()
                found["time"].append(sampled - started)
                found["resident"].append(resident_bytes() - before)
                found["inserts"].append(client.describe_table(config.table.name).inserts)
            time.sleep(max(due - time.monotonic(), 0.0))
    return found


def rows_of(name: str, found: dict[str, list[float]], mirror: TableMirror) -> list[Row]:
    """Return the rows of one feed."""
    turned = (np.array(found["inserts"]) - found["inserts"][0]) / _ITEMS
    settled = turned >= min(_SETTLED_TURNOVERS, turned[-1] / 2)
    hours = np.array(found["time"])[settled] / 3600
    resident = np.array(found["resident"])[settled] / _MIB
    slope = float(np.polyfit(hours, resident, 1)[0])
    per = f"{name}, {turned[-1]:.0f} turnovers of {_ITEMS:,} items in {found['time'][-1] / 60:.0f} minutes"
    resident_mib, said_mib = resident_rows_bytes(mirror) / _MIB, mirror.size_bytes / _MIB
    return [
        row(f"mirror's rows in memory against what it says, {per}", "MiB", [resident_mib], [said_mib]),
        row(f"growth of a feed's memory, {per}", "MiB/h", [slope]),
        row(f"memory at the tenth turnover and at the end, {per}", "MiB", [float(resident[0]), float(resident[-1])]),
    ]


def main() -> None:
    """Measure and write benchmarks/results/mirror_turnover.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of each feed")
    parser.add_argument("--steps-per-s", type=float, default=1_000.0, help="that are appended")
    parser.add_argument("--feeds", nargs="+", choices=list(FEEDS), default=["mirrored"], help="in turns")
    parser.add_argument("--append-to", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append_to:
        return append(options.append_to, options.steps_per_s)
    torch.set_num_threads(1)
    keep_freed_memory()
    config = CASES[_CASE].config()
    config = dataclasses.replace(config, table=dataclasses.replace(config.table, max_items=_ITEMS))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        path = Path(folder) / "run.yaml"
        write_document(config, path)
        with servers(config, str(path), _ITEMS + _ITEMS // 10) as addresses:
            address = addresses[addresses.index("--cluster.replay") + 1]
            command = [sys.executable, "-m", "benchmarks.mirror_turnover", "--append-to", address]
            writer = subprocess.Popen([*command, "--steps-per-s", str(options.steps_per_s)])
            try:
                for name in options.feeds:
                    opened: list[TableMirror] = []
                    what = dataclasses.replace(FEEDS[name], opened=opened.append)
                    rows += rows_of(name, watch(config, address, what, 60 * options.minutes), opened[0])
            finally:
                writer.kill()
                writer.wait()
    return write("mirror_turnover", rows)


if __name__ == "__main__":
    main()
