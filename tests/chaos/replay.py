"""A replay server that is killed or frozen again and again while actors write and a learner samples."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.chaos.fault_report import FaultReport, pause
from tests.support.replay_log import RANKED, Load, load, options
from tests.support.replay_service import ServerProcess, server_process, whole_table
from tests.support.replay_streams import SIGNATURE
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode
from tidemill.replay.sampling.sampler import ReplaySampler

WRITERS = 3
_LONGEST_PAUSE_S = 1.0
FAULTS_PER_ROUND = 10
"""Faults of one server, few enough for its table to hold all that is written meanwhile."""


def kill_replay(folder: Path, kills: int, seed: int, ack: str) -> FaultReport:
    """Kill the server at random moments; everything that was written is there once, as it was written.

    The writers repeat what was not acknowledged, so all that they sent must be there at the end, and nothing else.
    """
    rng = random.Random(seed)

    def fault(server: ServerProcess) -> float:
        began_s = time.monotonic()
        server.close()
        server.start()
        return began_s

    report = FaultReport(f"replay server killed, ack: {ack}")
    return _rounds(report, kills, rng, fault, lambda number: options(folder / str(number), ack=ack, segment_mib=1))


def freeze_replay(folder: Path, freezes: int, seed: int) -> FaultReport:
    """Stop the server with SIGSTOP for a while: the writers notice nothing but a pause."""
    rng = random.Random(seed)

    def fault(server: ServerProcess) -> float:
        os.kill(server.pid, signal.SIGSTOP)
        pause(rng.uniform(1.0, 3.0))
        began_s = time.monotonic()
        os.kill(server.pid, signal.SIGCONT)
        return began_s

    report = FaultReport("replay server frozen for 1 to 3 s")
    return _rounds(report, freezes, rng, fault, lambda number: options(folder / str(number)))


def _rounds(
    report: FaultReport,
    faults: int,
    rng: random.Random,
    fault: Callable[[ServerProcess], float],
    arguments: Callable[[int], tuple[str, ...]],
) -> FaultReport:
    """Cause faults, a few to each server, so that its table holds all that was written; then read it.

    `fault` returns when the time to recovery starts.
    """
    for number, first in enumerate(range(0, faults, FAULTS_PER_ROUND)):
        with server_process("127.0.0.1:0", *arguments(number)) as server, ReplayClient(server.address) as client:
            client.create_table(RANKED)
            with load(server.address, WRITERS) as running, sampling(server.address) as reading:
                for _ in range(min(FAULTS_PER_ROUND, faults - first)):
                    pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
                    before = running.acknowledged  # data in flight may still be acknowledged: that is not a recovery
                    began_s = fault(server)
                    most = max(before, running.acknowledged)
                    report.time_recovery(began_s, lambda m=most: running.acknowledged > m, "the writers continue")  # type: ignore[misc]
                    ranked = reading.ranked
                    wait_until(lambda r=ranked: reading.ranked > r, "the learner continues")  # type: ignore[misc]
                running.stop()
            compare(report, server.address, running)
    return report


def compare(report: FaultReport, address: str, running: Load) -> None:
    """Hold what the server has against what the writers were told."""
    sent = {(stream, step) for stream in range(WRITERS) for step in range(running.written[stream])}
    assert len(sent) < RANKED.max_items, "the table has dropped what should be compared"
    batch = whole_table(address, RANKED)
    assert batch is not None, "the table is empty"
    decoded = decode(SIGNATURE, batch, 1)
    last = decoded.index[:, -1]
    stream, step = decoded.columns["stream"][last, 0], decoded.columns["step"][last]
    wanted = np.stack([step, step * 7, stream], axis=1)
    found = Counter(zip(stream.tolist(), step.tolist(), strict=True))
    report.acknowledged += len(sent)  # every writer has flushed
    report.acknowledged_lost += len(sent - found.keys())
    report.unknown += len(found.keys() - sent)
    report.duplicates += sum(times - 1 for times in found.values())
    report.altered += int((decoded.columns["frame"][last] != wanted).any(axis=1).sum())


class Sampling(threading.Thread):
    """Samples and sets priorities meanwhile, as a learner does.

    Attributes:
        batches: How many came.
        ranked: How many of them had their priorities set.
        error: What ended it early.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address, self._ended = address, threading.Event()
        self.batches = self.ranked = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work until it is closed."""
        try:
            self._learn()
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        """End."""
        self._ended.set()
        self.join(WAIT_S)

    def _learn(self) -> None:
        address = self._address
        with ReplaySampler([address], RANKED, 32, max_in_flight_batches=2) as sampler, ReplayClient(address) as client:
            while not self._ended.is_set():
                batch = sampler.take(0.2)
                if batch is None:
                    continue
                self.batches += 1
                try:
                    client.update_priorities("t", batch.keys, np.ones(len(batch.keys)))
                    self.ranked += 1
                except TidemillError:  # the server is away
                    self._ended.wait(0.05)


@contextmanager
def sampling(address: str) -> Iterator[Sampling]:
    """Sample while the block runs."""
    thread = Sampling(address)
    thread.start()
    try:
        yield thread
    finally:
        thread.close()
    assert thread.error is None, thread.error
