"""A queue of token trajectories between generators and a trainer, as LLM-RL has it: each trajectory is used once.

    tidemill replay --folder data
    python token_queue.py

Prompt and answer vary in length. The queue is first in, first out, an item leaves it when it has been sampled, and
inserts wait while it is full: what is trained on is never older than the queue is long. No model: tokens are random.
"""

from __future__ import annotations

import argparse
import contextlib
import threading

import numpy as np

from tidemill.replay import (
    ItemWindow,
    NotFound,
    RateLimiterConfig,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    Unavailable,
    signature_like,
)

BATCH, MAX_PROMPT, MAX_ANSWER = 32, 128, 512
SIGNATURE = signature_like(
    {"number": 0, "prompt": [0], "answer": np.zeros(1, np.int32), "logprobs": np.zeros(1, np.float32), "reward": 0.0},
    max_lengths={"prompt": MAX_PROMPT, "answer": MAX_ANSWER, "logprobs": MAX_ANSWER},
)
QUEUE = TableConfig(
    "trajectories",
    SIGNATURE,
    sampler=SelectorConfig(SelectorKind.FIFO),
    max_items=4 * BATCH,
    max_item_steps=1,
    rate_limiter=RateLimiterConfig(queue_size=2 * BATCH),
    max_times_sampled=1,
)


def generate(address: str, version: list[int], stop: threading.Event) -> None:
    """Write trajectories, each with the version of the policy that made it, until told to stop."""
    rng, number = np.random.default_rng(0), 0
    one = ItemWindow(length=1)
    writer = ReplayWriter(address, QUEUE, windows=one, chunk_length=1, max_in_flight_chunks=1, stop=stop)
    try:
        while not stop.is_set():
            length = int(rng.integers(1, MAX_ANSWER + 1))
            trajectory = {
                "number": number,
                "prompt": rng.integers(32_000, size=rng.integers(1, MAX_PROMPT + 1)),
                "answer": np.arange(length) + number,
                "logprobs": rng.normal(size=length),
                "reward": rng.random(),
            }
            writer.append(trajectory, params_version=version[0])
            number += 1
    except Unavailable:
        if not stop.is_set():
            raise
    finally:
        writer.close()


def main() -> None:
    """Generate in a thread, train in this one, and check what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", default="127.0.0.1:7401", help="address of the replay server")
    parser.add_argument("--batches", type=int, default=100, help="updates")
    options = parser.parse_args()
    with contextlib.suppress(NotFound), ReplayClient(options.replay) as client:
        client.drop_table(QUEUE.name)  # an earlier run left what it had not trained on
    stop, version, numbers, oldest = threading.Event(), [1], [], 0
    generator = threading.Thread(target=generate, args=(options.replay, version, stop))
    generator.start()
    try:
        with ReplayDataset(options.replay, QUEUE, BATCH, timeout_s=60.0, prefetch=1, create=True) as dataset:
            for _ in range(options.batches):
                batch = next(dataset)
                numbers += batch["number"][:, 0].tolist()
                for number, (answer,) in zip(numbers[-BATCH:], batch.ragged("answer"), strict=True):
                    assert answer.tolist() == list(range(number, number + len(answer)))
                oldest = max(oldest, version[0] - int(batch.params_versions.min()))
                version[0] += 1  # what an update of the policy would do
    finally:
        stop.set()
        generator.join()
    assert numbers == list(range(len(numbers)))
    print(f"{len(numbers)} trajectories, each once and in order, at most {oldest} versions old")


if __name__ == "__main__":
    main()
