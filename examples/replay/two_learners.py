"""Two learners, each a process, on one prioritized table: both sample it, and each sees the priorities of the other.

    tidemill replay --folder data
    python two_learners.py

The "loss" of an item is its own number, so the highest is to be sampled most once its priority is known.
"""

from __future__ import annotations

import argparse
import multiprocessing

import numpy as np

from tidemill.replay import (
    ItemWindow,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)

ITEMS, BATCHES, BATCH = 1000, 200, 64
TABLE = TableConfig(
    "shared",
    signature_like({"number": 0}),
    SelectorConfig(SelectorKind.PRIORITIZED, priority_exponent=1.0),
    max_items=ITEMS,
    max_item_steps=1,
)


def learn(address: str, index: int, result: multiprocessing.SimpleQueue[tuple[int, int, int]]) -> None:
    """Sample, and set priorities; the result is how often the best item came."""
    best = 0
    with ReplayDataset(address, TABLE, BATCH, timeout_s=60.0) as dataset:
        for _ in range(BATCHES):
            batch = next(dataset)
            number = batch["number"][:, 0]
            best += int((number == ITEMS - 1).sum())
            dataset.update_priorities(batch, np.where(number == ITEMS - 1, 1e4, 1.0))
    result.put((index, BATCHES, best))


def main() -> None:
    """Fill the table, and let both learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", default="127.0.0.1:7401", help="address of the replay server")
    address = parser.parse_args().replay
    with ReplayWriter(address, TABLE, windows=ItemWindow(length=1, priority=1.0)) as writer:
        for number in range(ITEMS):
            writer.append({"number": number})
    spawn = multiprocessing.get_context("spawn")  # gRPC does not live on in a forked process
    result = spawn.SimpleQueue()
    learners = [spawn.Process(target=learn, args=(address, index, result)) for index in range(2)]
    for learner in learners:
        learner.start()
    for learner in learners:
        learner.join()
        if learner.exitcode:
            raise SystemExit(f"a learner ended with {learner.exitcode}")
    found = sorted(result.get() for _ in learners)
    for index, batches, _ in found:
        print(f"learner {index}: {batches} batches")
    print(f"the best of {ITEMS} items was sampled {' and '.join(str(best) for *_, best in found)} times")


if __name__ == "__main__":
    main()
