"""The same roles with Reverb: server, writer, sampler. Runs in Reverb's own environment; imports nothing of ours.

Reverb gets what suits it: one trajectory writer a process that writes whole episodes' worth of one environment after
another, single frames (no stack is stored twice), items of seven frames, and its dataset with several samples in
flight. Its windows are handed over as they come: the two stacks of a transition are views of them, which leaves the
reset of stacks at episode starts, that ours does, undone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import reverb

TABLE = "benchmark"
STACK, N_STEPS, GAMMA = 4, 3, 0.99
WINDOW = STACK + N_STEPS
WARM_UP_S = 1.5


def serve(max_items: int) -> None:
    """Serve one table until standard input closes; print the port."""
    import tensorflow as tf  # only the server needs it: seconds

    signature = {
        "observation": tf.TensorSpec((WINDOW, 84, 84), tf.uint8),
        "action": tf.TensorSpec((), tf.int64),
        "reward": tf.TensorSpec((N_STEPS,), tf.float32),
        "terminated": tf.TensorSpec((N_STEPS,), tf.bool),
    }
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=max_items,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    server = reverb.Server([table], port=None)
    print(json.dumps({"port": server.port, "pid": os.getpid()}), flush=True)
    sys.stdin.read()
    server.stop()


class Writer:
    """One trajectory writer over the environments in turn."""

    def __init__(self, address: str, steps: dict[str, Any], chunk_length: int) -> None:
        self._writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=max(WINDOW, chunk_length))
        if chunk_length:
            for column in range(4):
                self._writer.configure(
                    (column,), num_keep_alive_refs=max(WINDOW, chunk_length), max_chunk_length=chunk_length
                )
        self._rng = np.random.default_rng(0)
        self._rows = self._endless(steps)
        self.items = 0

    @staticmethod
    def _endless(steps: dict[str, Any]) -> Iterator[tuple[Any, ...] | None]:
        envs, length = steps["reward"].shape
        for env in itertools.cycle(range(envs)):
            yield None
            for t in range(length):
                yield (
                    steps["observation"][env, t],
                    steps["action"][env, t],
                    steps["reward"][env, t],
                    steps["terminated"][env, t],
                )

    def write(self, count: int) -> None:
        """Write some steps, an item at every step that has a full window behind it."""
        writer = self._writer
        for row in itertools.islice(self._rows, count):
            if row is None:
                writer.end_episode()
                continue
            writer.append(list(row))
            observation, action, reward, terminated = writer.history
            if len(observation) < WINDOW:
                continue
            trajectory = {
                "observation": observation[-WINDOW:],
                "action": action[-(N_STEPS + 1)],
                "reward": reward[-(N_STEPS + 1) : -1],
                "terminated": terminated[-(N_STEPS + 1) : -1],
            }
            writer.create_item(TABLE, self._rng.random(), trajectory)
            self.items += 1
        writer.flush(block_until_num_items=200)  # what may be unacknowledged

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        self._writer.flush()


def write(address: str, frames: str, seconds: float, limit: int, chunk_length: int) -> float:
    """Write for a time, or up to a number of items; return acknowledged items per second."""
    with np.load(frames) as arrays:
        writer = Writer(address, dict(arrays), chunk_length)
    rate = 0.0
    for phase_s in (WARM_UP_S, seconds):
        began, before = time.monotonic(), writer.items
        while time.monotonic() - began < phase_s and writer.items < limit:
            writer.write(200)
        writer.flush()
        rate = (writer.items - before) / (time.monotonic() - began)
    return rate


def sample(address: str, batch_size: int, seconds: float) -> float:
    """Sample through the dataset and set the priorities of every batch; return transitions per second."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, TABLE, max_in_flight_samples_per_worker=2 * batch_size
    )
    batches = dataset.batch(batch_size, drop_remainder=True).prefetch(4).as_numpy_iterator()
    rng = np.random.default_rng(0)
    updates: queue.Queue[Any] = queue.Queue(4)
    client = reverb.Client(address)

    def update() -> None:
        while (entry := updates.get()) is not None:
            client.mutate_priorities(TABLE, dict(zip(*entry, strict=True)))

    thread = threading.Thread(target=update)
    thread.start()
    discounts = GAMMA ** np.arange(N_STEPS, dtype=np.float32)
    rate = 0.0
    for phase_s in (WARM_UP_S, seconds):
        count, began = 0, time.monotonic()
        while time.monotonic() - began < phase_s:
            batch = next(batches)
            window = batch.data["observation"]
            ready = {
                "observation": window[:, :STACK],
                "bootstrap_observation": window[:, -STACK:],
                "n_step_return": (batch.data["reward"] * discounts).sum(axis=1),
            }
            updates.put((batch.info.key.tolist(), rng.random(batch_size).tolist()))
            count += len(ready["n_step_return"])
        rate = count / (time.monotonic() - began)
    updates.put(None)
    thread.join()
    return rate


def main() -> None:
    """Play one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["serve", "write", "sample"])
    parser.add_argument("--address", default="")
    parser.add_argument("--frames", default="")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--limit", type=int, default=2**62)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--chunk-length", type=int, default=0, help="0: Reverb's own choice")
    parser.add_argument("--max-items", type=int, default=1_000_000)
    a = parser.parse_args()
    if a.role == "serve":
        serve(a.max_items)
    elif a.role == "write":
        print(json.dumps(write(a.address, a.frames, a.seconds, a.limit, a.chunk_length)), flush=True)
    else:
        print(json.dumps(sample(a.address, a.batch_size, a.seconds)), flush=True)
        os._exit(0)  # its prefetching threads would wait for more


if __name__ == "__main__":
    main()
