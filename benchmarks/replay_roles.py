"""The client processes of the replay benchmark: those that write, and one that samples."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.replay_frames import NUM_ENVS, Steps, cached_steps
from tidemill.process import keep_freed_memory
from tidemill.replay.batch import SampledBatch
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode, encode
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rl.transitions import transitions
from tidemill.types import EnvSpec, WindowSpec, signature_of

CHUNK_LENGTH = 16
FRAME_STACK, N_STEPS, GAMMA = 4, 3, 0.99
WINDOW = WindowSpec(FRAME_STACK - 1, N_STEPS)
SIGNATURE = signature_of(EnvSpec((84, 84), "uint8", FRAME_STACK, num_actions=18))
TABLE = TableConfig(
    name="benchmark",
    signature=SIGNATURE,
    sampler=SelectorConfig(SelectorKind.PRIORITIZED, 0.6),
    max_items=1_000_000,
    max_item_steps=WINDOW.length,
)
_WARM_UP_S = 1.5
_FLUSH_S = 60.0
_UPDATES_UNDERWAY = 4


class Writer:
    """Packs steps into chunks with an item at every step, as an actor does, and appends them."""

    def __init__(self, address: str, actor_id: str) -> None:
        self.appender = StreamAppender(
            address, actor_id, NUM_ENVS, SIGNATURE, [TABLE.name], CHUNK_LENGTH, max_in_flight_chunks=8 * NUM_ENVS
        )
        self.written = 0
        self._first_step = 0
        self._rng = np.random.default_rng(0)

    def write(self, steps: Steps, start: int) -> None:
        """Append steps start .. start + 15 of every environment."""
        here = slice(start, start + CHUNK_LENGTH)
        columns = vars(steps)
        chunks = [
            Chunk(
                env_index=e,
                first_step=self._first_step,
                step_count=CHUNK_LENGTH,
                decision_count=CHUNK_LENGTH,
                params_version=1,
                blocks=encode(SIGNATURE, {name: column[e, here] for name, column in columns.items()}),
            )
            for e in range(NUM_ENVS)
        ]
        offsets = np.arange(CHUNK_LENGTH)
        ends = offsets[self._first_step + offsets >= WINDOW.length - 1]
        items = ItemBatch(
            table_index=0,
            chunk_indices=np.repeat(np.arange(NUM_ENVS), len(ends)),
            last_offsets=np.tile(ends, NUM_ENVS),
            lengths=np.full(NUM_ENVS * len(ends), WINDOW.length),
            priorities=self._rng.random(NUM_ENVS * len(ends)),
        )
        self.appender.append(chunks, [items])
        self._first_step += CHUNK_LENGTH
        self.written += CHUNK_LENGTH * NUM_ENVS

    def acknowledged(self) -> int:
        """Return how many of the steps written are stored."""
        return self.written - self.appender.unacknowledged_chunks * CHUNK_LENGTH


def write(address: str, actor_id: str, seconds: float, limit: int) -> float:
    """Write cached frames for a time, or up to a number of steps; return acknowledged steps per second.

    A time is measured after a warm-up, a number of steps as a whole.
    """
    steps = cached_steps()
    starts = itertools.cycle(range(0, steps.reward.shape[1], CHUNK_LENGTH))
    writer = Writer(address, actor_id)
    started = time.monotonic()
    with writer.appender:
        for phase_s in (_WARM_UP_S, seconds):
            began, before = time.monotonic(), writer.acknowledged()
            while time.monotonic() - began < phase_s and writer.written < limit:
                writer.write(steps, next(starts))
            rate = (writer.acknowledged() - before) / (time.monotonic() - began)
        writer.appender.flush(_FLUSH_S)
        if writer.written >= limit:
            rate = writer.acknowledged() / (time.monotonic() - started)
    return rate


def write_paced(address: str, actor_id: str, seconds: float, streams: int, steps_per_s: float) -> dict[str, float]:
    """Write at a fixed rate through many append streams in turn; return what each of them got acknowledged.

    Returns:
        `rate`: acknowledged steps per second of all streams; `fewest` and `most`: calls of one stream acknowledged.
    """
    steps, per_call = cached_steps(), CHUNK_LENGTH * NUM_ENVS
    starts = itertools.cycle(range(0, steps.reward.shape[1], CHUNK_LENGTH))
    writers = [Writer(address, f"{actor_id}-{i}") for i in range(streams)]
    began = due = time.monotonic()
    for writer in itertools.cycle(writers):
        writer.write(steps, next(starts))
        due += per_call / steps_per_s
        if due - began > seconds:
            break
        time.sleep(max(0.0, due - time.monotonic()))
    elapsed, acknowledged = time.monotonic() - began, [writer.acknowledged() for writer in writers]
    for writer in writers:
        writer.appender.close()
    calls = [count / per_call for count in acknowledged]
    return {"rate": sum(acknowledged) / elapsed, "fewest": min(calls), "most": max(calls)}


def sample(address: str, batch_size: int, seconds: float, max_items: int, threads: int) -> float:
    """Sample decoded n-step transitions and set their priorities; return transitions per second.

    Some threads take batches and decode them, as a learner's do; this one takes what is ready.
    """
    rng = np.random.default_rng(0)
    ready: queue.Queue[tuple[SampledBatch, dict[str, np.ndarray]]] = queue.Queue(2)
    over = threading.Event()

    def decode_batches(stream: ReplaySampler) -> None:
        for batch in stream:
            decoded = decode(SIGNATURE, batch, WINDOW.length)
            arrays = transitions(decoded.columns, decoded.index, FRAME_STACK, N_STEPS, GAMMA)
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    ready.put((batch, arrays), timeout=0.2)
                    break

    with (
        ReplayClient(address) as client,
        ReplaySampler(
            [address], replace(TABLE, max_items=max_items), batch_size, max_in_flight_batches=4, create=True, stop=over
        ) as stream,
        _Updates(client) as updates,
    ):
        decoders = [threading.Thread(target=decode_batches, args=[stream]) for _ in range(threads)]
        for decoder in decoders:
            decoder.start()
        for phase_s in (_WARM_UP_S, seconds):
            count, began = 0, time.monotonic()
            while time.monotonic() - began < phase_s:
                batch, arrays = ready.get(timeout=_FLUSH_S)
                updates.put(batch, rng.random(len(batch.keys)))
                count += len(arrays["n_step_return"])
            rate = count / (time.monotonic() - began)
        over.set()
        for decoder in decoders:
            decoder.join(_FLUSH_S)
    return rate


def probe(address: str, actor_id: str, seconds: float) -> dict[str, float]:
    """Insert and sample by turns, one call at a time; return how long the calls took, in milliseconds."""
    steps = cached_steps()
    starts = itertools.cycle(range(0, steps.reward.shape[1], CHUNK_LENGTH))
    writer, inserts, samples = Writer(address, actor_id), [], []
    with writer.appender, ReplaySampler([address], TABLE, 256, max_in_flight_batches=1, create=True) as stream:
        next(stream)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            called = time.perf_counter()
            writer.write(steps, next(starts))
            writer.appender.flush(_FLUSH_S)
            answered = time.perf_counter()
            next(stream)
            inserts.append(answered - called)
            samples.append(time.perf_counter() - answered)
    return {
        f"{name}_{what}_ms": 1e3 * float(np.quantile(taken, share))
        for name, taken in (("insert", inserts), ("sample", samples))
        for what, share in (("median", 0.5), ("p99", 0.99), ("longest", 1.0))
    }


class _Updates:
    """Sends priorities from a thread, as a learner does, a few batches behind at most."""

    def __init__(self, client: ReplayClient) -> None:
        self._client = client
        self._queue: queue.Queue[tuple[SampledBatch, np.ndarray] | None] = queue.Queue(_UPDATES_UNDERWAY)
        self._thread = threading.Thread(target=self._run)

    def put(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self._queue.put((batch, priorities))

    def _run(self) -> None:
        for batch, priorities in self._taken():
            self._client.update_priorities(TABLE.name, batch.keys, priorities)

    def _taken(self) -> Iterator[tuple[SampledBatch, np.ndarray]]:
        while (entry := self._queue.get()) is not None:
            yield entry

    def __enter__(self) -> _Updates:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()


def main() -> None:
    """Play one role and print its rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=["write", "pace", "sample", "probe"])
    parser.add_argument("address")
    parser.add_argument("--actor-id", default="writer")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--limit", type=int, default=2**62, help="steps after which to stop")
    parser.add_argument("--streams", type=int, default=1, help="append streams that take turns")
    parser.add_argument("--steps-per-s", type=float, default=20_000.0, help="of all streams together")
    parser.add_argument("--max-items", type=int, default=TABLE.max_items, help="of the table that is sampled")
    parser.add_argument("--decode-threads", type=int, default=2, help="of the process that samples")
    parser.add_argument("--batch-size", type=int, default=256)
    a = parser.parse_args()
    keep_freed_memory()  # as every process does that handles images
    rates: dict[str, Callable[[], object]] = {
        "write": lambda: write(a.address, a.actor_id, a.seconds, a.limit),
        "pace": lambda: write_paced(a.address, a.actor_id, a.seconds, a.streams, a.steps_per_s),
        "probe": lambda: probe(a.address, a.actor_id, a.seconds),
        "sample": lambda: sample(a.address, a.batch_size, a.seconds, a.max_items, a.decode_threads),
    }
    print(json.dumps(rates[a.role]()))


if __name__ == "__main__":
    main()
