"""The client processes of the replay benchmark through `tidemill.replay` alone, as any program writes and samples."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import queue
import threading
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay_frames import NUM_ENVS, cached_steps
from benchmarks.replay_roles import CHUNK_LENGTH, FRAME_STACK, GAMMA, N_STEPS, TABLE, WINDOW
from tidemill import replay
from tidemill.process import keep_freed_memory
from tidemill.rl.transitions import transitions

_WARM_UP_S = 1.5
_FLUSH_S = 60.0
_UPDATES_UNDERWAY = 4
_STEPS_AT_ONCE = 16  # between two looks at the clock

Arrays = dict[str, NDArray[np.generic]]
Decoded = tuple[replay.ReplayBatch, Arrays]


class _Writer:
    """Appends the recorded frames again and again, a step of every environment at a time, with an item at each."""

    def __init__(self, address: str, actor_id: str) -> None:
        recorded = vars(cached_steps())
        columns = {name: np.ascontiguousarray(column.swapaxes(0, 1)) for name, column in recorded.items()}
        steps = len(columns["reward"])
        self._steps = itertools.cycle([{name: column[t] for name, column in columns.items()} for t in range(steps)])
        self.writer = replay.ReplayWriter(
            address,
            TABLE,
            num_envs=NUM_ENVS,
            windows=replay.ItemWindow(WINDOW.length),
            name=actor_id,
            chunk_length=CHUNK_LENGTH,
            max_in_flight_chunks=8,
        )
        self.written = 0

    def write(self) -> None:
        """Append some steps of every environment."""
        for step in itertools.islice(self._steps, _STEPS_AT_ONCE):
            self.writer.append(step)
        self.written += _STEPS_AT_ONCE * NUM_ENVS

    def acknowledged(self) -> int:
        """Return how many of the steps in full chunks are stored."""
        full = self.written // (CHUNK_LENGTH * NUM_ENVS) * NUM_ENVS
        return (full - self.writer.unacknowledged_chunks) * CHUNK_LENGTH


def write(address: str, actor_id: str, seconds: float, limit: int) -> float:
    """Write for a time, or up to a number of steps; return acknowledged steps per second.

    A time is measured after a warm-up, a number of steps as a whole.
    """
    frames = _Writer(address, actor_id)
    started = time.monotonic()
    with frames.writer:
        for phase_s in (_WARM_UP_S, seconds):
            began, before = time.monotonic(), frames.acknowledged()
            while time.monotonic() - began < phase_s and frames.written < limit:
                frames.write()
            rate = (frames.acknowledged() - before) / (time.monotonic() - began)
        frames.writer.flush(_FLUSH_S)
        if frames.written >= limit:
            rate = frames.written / (time.monotonic() - started)
    return rate


def sample(address: str, batch_size: int, seconds: float, max_items: int, threads: int) -> float:
    """Take batches, make n-step transitions of them and set their priorities; return transitions per second.

    Some threads take batches, which decodes them, as a learner's do; this one takes what is ready. Without threads it
    decodes them itself.
    """
    rng, over = np.random.default_rng(0), threading.Event()
    ready: queue.Queue[Decoded] = queue.Queue(2)
    updates: queue.Queue[tuple[replay.ReplayBatch, NDArray[np.float64]] | None] = queue.Queue(_UPDATES_UNDERWAY)

    def take(dataset: replay.ReplayDataset) -> None:
        for batch in dataset:
            _hand_over((batch, _transitions(batch)), ready, over)

    def update(dataset: replay.ReplayDataset) -> None:
        while (entry := updates.get()) is not None:
            dataset.update_priorities(*entry)

    table = replace(TABLE, max_items=max_items)
    with replay.ReplayDataset(address, table, batch_size, timeout_s=_FLUSH_S, create=True, stop=over) as dataset:
        takers = [threading.Thread(target=take, args=[dataset]) for _ in range(threads)]
        updater = threading.Thread(target=update, args=[dataset])
        for thread in (*takers, updater):
            thread.start()
        for phase_s in (_WARM_UP_S, seconds):
            count, began = 0, time.monotonic()
            while time.monotonic() - began < phase_s:
                batch, arrays = ready.get(timeout=_FLUSH_S) if threads else _decoded(dataset)
                updates.put((batch, rng.random(len(batch))))
                count += len(arrays["n_step_return"])
            rate = count / (time.monotonic() - began)
        updates.put(None)
        updater.join(_FLUSH_S)
        over.set()
        for thread in takers:
            thread.join(_FLUSH_S)
    return rate


def _hand_over(entry: Decoded, ready: queue.Queue[Decoded], over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(entry, timeout=0.2)
            return


def _decoded(dataset: replay.ReplayDataset) -> Decoded:
    batch = next(dataset)
    return batch, _transitions(batch)


def _transitions(batch: replay.ReplayBatch) -> Arrays:
    """Return stacks of frames and n-step returns, [B, ...], of windows [B, L, ...]."""
    size, length = len(batch), batch["reward"].shape[1]
    rows = {name: column.reshape(size * length, *column.shape[2:]) for name, column in batch.columns.items()}
    return transitions(rows, np.arange(size * length).reshape(size, length), FRAME_STACK, N_STEPS, GAMMA)


def main() -> None:
    """Play one role and print its rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=["write", "sample"])
    parser.add_argument("address")
    parser.add_argument("--actor-id", default="writer")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--limit", type=int, default=2**62, help="steps after which to stop")
    parser.add_argument("--max-items", type=int, default=TABLE.max_items, help="of the table that is sampled")
    parser.add_argument("--decode-threads", type=int, default=2, help="of the process that samples; 0: none")
    parser.add_argument("--batch-size", type=int, default=256)
    a = parser.parse_args()
    keep_freed_memory()  # as every process does that handles images
    if a.role == "write":
        rate = write(a.address, a.actor_id, a.seconds, a.limit)
    else:
        rate = sample(a.address, a.batch_size, a.seconds, a.max_items, a.decode_threads)
    print(json.dumps(rate))


if __name__ == "__main__":
    main()
