"""Batches of 512 Atari items decoded by one thread and by two, with the compiled kernel and without, in turns.

    python -m benchmarks.decode [--rounds 5] [--seconds 2]

The process may use two cores. No service runs: the batches are put together beforehand from frames of five games,
as a server sends them to a learner without a mirror. They are decoded to the rows that items cover, and to what a
learner trains on: both stacks of each item, returns and weights, as tensors.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.learner_feed import chunks_of_steps, cores
from benchmarks.replay_roles import CHUNK_LENGTH, FRAME_STACK, N_STEPS, SIGNATURE, TABLE, WINDOW
from benchmarks.rows import Row, row, write
from tidemill import kernel
from tidemill.process import keep_freed_memory
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.replay.codec import decode, encode
from tidemill.replay.sampling.corrupt_items import CorruptItemFilter
from tidemill.replay.sampling.sample_decoder import SampleDecoder
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.learner.data.decoder import ToDevice, decoded_later
from tidemill.types import Codec, EnvSpec

_BATCH = 512
_STEPS = 20_000
_SPEC = EnvSpec((84, 84), "uint8", FRAME_STACK, num_actions=18)

Chunk = tuple[bytes, ...]
Work = Callable[[SampledBatch], object]


@functools.cache
def recorded_chunks() -> list[Chunk]:
    """Return the encoded chunks of all games, a stream after the other."""
    return [encode(SIGNATURE, columns) for columns in chunks_of_steps(TABLE, _SPEC, _STEPS, CHUNK_LENGTH)]


def make_batch(rng: np.random.Generator) -> SampledBatch:
    """Return items at random places of a large table: none share a chunk, and those that straddle two bring both."""
    chunks = recorded_chunks()
    offsets = rng.integers(0, CHUNK_LENGTH, _BATCH)  # of each item's first row in its chunk
    held = 1 + (offsets + WINDOW.length > CHUNK_LENGTH)
    first = rng.integers(0, len(chunks) - 1, _BATCH)
    picked = [chunks[place] for place, count in zip(first, held, strict=True) for place in range(place, place + count)]
    blocks = []
    for column, spec in enumerate(SIGNATURE):
        parts = [chunk[column] for chunk in picked]
        sizes = [len(part) for part in parts] if spec.codec is Codec.LZ4 else []
        blocks.append(Blocks(b"".join(parts), np.array(sizes, dtype=np.int64)))
    return SampledBatch(
        keys=np.arange(_BATCH, dtype=np.uint64),
        probabilities=np.full(_BATCH, 1 / _BATCH),
        first_rows=(np.cumsum(held) - held) * CHUNK_LENGTH + offsets,
        lengths=np.full(_BATCH, WINDOW.length),
        payloads=(),
        step_counts=np.full(len(picked), CHUNK_LENGTH),
        params_versions=np.zeros(len(picked), dtype=np.uint64),
        blocks=tuple(blocks),
        table_items=_BATCH,
        total_weight=1.0,
        stored={},
    )


def to_rows(batch: SampledBatch) -> object:
    """Decode the rows that items cover."""
    return decode(SIGNATURE, batch, WINDOW.length)


def to_stacks() -> Work:
    """Create the decoding function of a learner with a double DQN."""
    cpu = torch.device("cpu")
    agent = build_agent(DQNConfig(n_step=N_STEPS), _SPEC, seed=1)
    corrupt = CorruptItemFilter(lambda _: None, time.monotonic)
    decoder = SampleDecoder(
        TABLE,
        _BATCH,
        1,
        corrupt,
        lambda: 0.4,
        transform=ToDevice(agent, cpu),
        encoded=decoded_later(agent, SIGNATURE),
        history=WINDOW.history,
    )
    return decoder.decode


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


def work_for(work: Work, batches: Sequence[SampledBatch], threads: int, seconds: float) -> Measured:
    """Work through batches over and over, in some threads."""
    ended, done = threading.Event(), [0] * threads

    def run(place: int) -> None:
        for batch in itertools.cycle(batches):
            if ended.is_set():
                return
            work(batch)
            done[place] += 1

    workers = [threading.Thread(target=run, args=(place,)) for place in range(threads)]
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


def measure(what: str, work: Work, rounds: int, seconds: float) -> list[Row]:
    """Measure every combination of threads and kernel once per round."""
    batches = [make_batch(np.random.default_rng(seed)) for seed in range(4)]
    cases = list(itertools.product((True, False), (1, 2)))
    found: dict[tuple[bool, int], list[Measured]] = {case: [] for case in cases}
    for _ in range(rounds):
        for used, threads in cases:
            kernel.available = used
            work_for(work, batches, threads, seconds / 4)
            found[used, threads].append(work_for(work, batches, threads, seconds))
    kernel.available = True

    def compare(name: str, unit: str, field: str, ours: tuple[bool, int], peer: tuple[bool, int]) -> Row:
        values = [[getattr(each, field) for each in found[case]] for case in (ours, peer)]
        return row(f"{name}, {len(batches[0].step_counts)} chunks each", unit, *values)

    per_s, per_core_s = f"batches of {_BATCH} {what}", f"batches of {_BATCH} {what} per core second"
    return [
        compare(f"{per_s}, 1 thread, kernel against Python", "1/s", "rate", (True, 1), (False, 1)),
        compare(f"{per_s}, 2 threads on 2 cores, kernel against Python", "1/s", "rate", (True, 2), (False, 2)),
        compare(f"{per_s}, 2 threads against 1, kernel", "1/s", "rate", (True, 2), (True, 1)),
        compare(f"{per_s}, 2 threads against 1, Python", "1/s", "rate", (False, 2), (False, 1)),
        compare(f"{per_core_s}, 1 thread, kernel against Python", "1/s", "core_rate", (True, 1), (False, 1)),
        compare(f"{per_core_s}, 2 threads, kernel against Python", "1/s", "core_rate", (True, 2), (False, 2)),
        compare(
            f"waits of a thread per batch {what}, 2 threads, kernel against Python", "", "waits", (True, 2), (False, 2)
        ),
    ]


def main() -> None:
    """Measure and write benchmarks/results/decode.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    if not kernel.available:
        raise SystemExit(f"the kernel is not in use: {kernel.reason}")
    os.sched_setaffinity(0, map(int, cores()))
    torch.set_num_threads(1)
    keep_freed_memory()
    kinds: dict[str, Work] = {"decoded": to_rows, "with stacks, ready to train on": to_stacks()}
    write(
        "decode", [row for what, work in kinds.items() for row in measure(what, work, options.rounds, options.seconds)]
    )


if __name__ == "__main__":
    main()
