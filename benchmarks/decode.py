"""Batches of 512 Atari items decoded by one thread and by two, with the compiled kernel and without, in turns.

    python -m benchmarks.decode [--rounds 9] [--seconds 2]

The process may use cores 0 and 1. No service runs: the batches are put together beforehand, as a server sends them to a
learner without a mirror. The copy into stacks is not in it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.learner_feed import random_columns
from benchmarks.replay_roles import SIGNATURE, TABLE, WINDOW
from benchmarks.rows import Row, row, write
from tidemill import kernel
from tidemill.codec import decode, encode
from tidemill.process import keep_freed_memory
from tidemill.replay.sampling.batch import Blocks, SampledBatch
from tidemill.types import Codec

_BATCH = 512
_CHUNK_STEPS = 16
_DIFFERENT_CHUNKS = 64
_CORES = {0, 1}


def make_batch(rng: np.random.Generator) -> SampledBatch:
    """Return items at random places of a large table: few share a chunk, and those that straddle two bring both."""
    chunks = [encode(SIGNATURE, random_columns(TABLE, _CHUNK_STEPS, rng)) for _ in range(_DIFFERENT_CHUNKS)]
    offsets = rng.integers(0, _CHUNK_STEPS, _BATCH)  # of each item's first row in its chunk
    held = 1 + (offsets + WINDOW.length > _CHUNK_STEPS)
    count = int(held.sum())
    picked = rng.integers(0, _DIFFERENT_CHUNKS, count)
    blocks = []
    for column, spec in enumerate(SIGNATURE):
        parts = [chunks[i][column] for i in picked]
        sizes = [len(part) for part in parts] if spec.codec is Codec.LZ4 else []
        blocks.append(Blocks(b"".join(parts), np.array(sizes, dtype=np.int64)))
    return SampledBatch(
        keys=np.arange(_BATCH, dtype=np.uint64),
        probabilities=np.full(_BATCH, 1 / _BATCH),
        first_rows=(np.cumsum(held) - held) * _CHUNK_STEPS + offsets,
        lengths=np.full(_BATCH, WINDOW.length),
        payloads=(),
        step_counts=np.full(count, _CHUNK_STEPS),
        params_versions=np.zeros(count, dtype=np.uint64),
        blocks=tuple(blocks),
        table_items=_BATCH,
        total_weight=1.0,
        stored={},
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What some threads did together.

    Attributes:
        rate: Batches per second.
        core_rate: Batches per second of processor time, which other programs disturb less.
        waits: How often a thread gave up its core for each batch, as for the interpreter's lock.
    """

    rate: float
    core_rate: float
    waits: float


def decode_for(batches: Sequence[SampledBatch], threads: int, seconds: float) -> Measured:
    """Decode batches over and over, in some threads."""
    ended, done = threading.Event(), [0] * threads

    def work(place: int) -> None:
        for batch in itertools.cycle(batches):
            if ended.is_set():
                return
            decode(SIGNATURE, batch, WINDOW.length)
            done[place] += 1

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for worker in workers:
        worker.start()
    ended.wait(seconds)
    ended.set()
    for worker in workers:
        worker.join()
    after, count = resource.getrusage(resource.RUSAGE_SELF), sum(done)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(count / (time.perf_counter() - started), count / used_s, (after.ru_nvcsw - before.ru_nvcsw) / count)


def measure(rounds: int, seconds: float) -> list[Row]:
    """Measure every combination once per round."""
    batches = [make_batch(np.random.default_rng(seed)) for seed in range(4)]
    cases = list(itertools.product((True, False), (1, 2)))
    found: dict[tuple[bool, int], list[Measured]] = {case: [] for case in cases}
    for _ in range(rounds):
        for used, threads in cases:
            kernel.available = used
            decode_for(batches, threads, seconds / 4)
            found[used, threads].append(decode_for(batches, threads, seconds))

    def compare(name: str, unit: str, what: str, ours: tuple[bool, int], peer: tuple[bool, int]) -> Row:
        values = [[getattr(each, what) for each in found[case]] for case in (ours, peer)]
        return row(f"{name}, {len(batches[0].step_counts)} chunks each", unit, *values)

    per_s, per_core_s = f"batches of {_BATCH} decoded", f"batches of {_BATCH} decoded per core second"
    return [
        compare(f"{per_s}, 1 thread, kernel against Python", "1/s", "rate", (True, 1), (False, 1)),
        compare(f"{per_s}, 2 threads on 2 cores, kernel against Python", "1/s", "rate", (True, 2), (False, 2)),
        compare(f"{per_s}, 2 threads against 1, kernel", "1/s", "rate", (True, 2), (True, 1)),
        compare(f"{per_s}, 2 threads against 1, Python", "1/s", "rate", (False, 2), (False, 1)),
        compare(f"{per_core_s}, 1 thread, kernel against Python", "1/s", "core_rate", (True, 1), (False, 1)),
        compare(f"{per_core_s}, 2 threads, kernel against Python", "1/s", "core_rate", (True, 2), (False, 2)),
        compare("waits of a thread per batch, 2 threads, kernel against Python", "", "waits", (True, 2), (False, 2)),
    ]


def main() -> None:
    """Measure and write benchmarks/results/decode.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    if not kernel.available:
        raise SystemExit(f"the kernel is not in use: {kernel.reason}")
    os.sched_setaffinity(0, _CORES)
    keep_freed_memory()
    write("decode", measure(options.rounds, options.seconds))


if __name__ == "__main__":
    main()
