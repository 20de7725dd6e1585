"""The way from the replay service to a learner's ready batches, with an update that does nothing: `make bench-feed`.

The server has one core; the feeding process may use that one and another. Frames are of five Atari games. Rows: items
per second to the training thread with a mirror and without one, in turns; with the mirror's observations on the device
(a GPU, or the CPU in its place), and the same without the device's own gather, whose work a GPU does beside: what is
left are the index arrays and the columns besides observations. An agent on a GPU has frames stacked by its update, so
that each travels once; on a CPU they are stacked here. And the rate of small operators that the training thread
launches beside the feed at 100 batches per second, against its rate alone: with all of the work on the host's cores,
with that which a device leaves to the host, and with the same feed in a separate process, which shares the cores but
not the interpreter, so that the difference is the interpreter's.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.learner_cases import CASES, Case
from benchmarks.learner_feed import cores, servers
from benchmarks.rows import Row, row, write
from tidemill.config.sections import RunConfig
from tidemill.envs.make import spec_of
from tidemill.process import keep_freed_memory
from tidemill.replay.sampling.dataset import Decoding, ReplayDataset
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.mirror_memory import open_mirror
from tidemill.replay.sampling.source import Connect, OpenedSource, SampleShape
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.learner.data.dataset import importance_sampling_exponent
from tidemill.services.learner.data.decoder import DatasetBatches, ToDevice, decoded_later
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.services.learner.data.table import batches_per_sample, table_config

_OPERATORS = 179  # of an update of the DQN family, each small
_FED_BATCHES_PER_S = 100.0
_WARM = b"warm\n"
_MIRROR_BYTES = 2**34


class RowsNotGathered(DeviceRows):
    """Observations on a device that takes no time to gather them."""

    host_bytes = 0

    def take(self, rows: Tensor) -> Tensor:
        """Return nothing in place of each item."""
        return torch.empty((len(rows), 0))


@dataclasses.dataclass(frozen=True)
class Feed:
    """What a learner's feed keeps.

    Attributes:
        mirrored: Whether it keeps the table.
        rows: What keeps the mirror's observations; None for the host's memory.
        batches: In one sample call; 0 for as many as a learner draws.
        opened: Is given the mirror.
    """

    mirrored: bool = True
    rows: type[DeviceRows] | None = None
    batches: int = 0
    opened: Callable[[TableMirror], object] = id


FEEDS = {
    "mirrored": Feed(),
    "mirrored, observations on the device": Feed(rows=DeviceRows),
    "mirrored, index arrays alone": Feed(rows=RowsNotGathered),
    "mirrored, index arrays alone, 8 batches a call": Feed(rows=RowsNotGathered, batches=8),
    "unmirrored": Feed(mirrored=False),
}


@dataclasses.dataclass
class FeedRows:
    """Keeps what a feed keeps (`Keep`).

    Attributes:
        what: The feed.
        stride: Steps from the start of an item to that of the next.
        chunk_length: Steps of a chunk.
        hold: Samples that may be drawn before one is read.
        device: Where batches go.
        on_device: The observations that are there, once opened.
    """

    what: Feed
    stride: int
    chunk_length: int
    device: torch.device
    on_device: DeviceRows | None = None

    def open(self, table: TableConfig, shape: SampleShape, connect: Connect, _stack: ExitStack) -> OpenedSource:
        """Start to sample."""

        def keep(rows: int) -> DeviceRows:
            assert self.what.rows is not None
            self.on_device = self.what.rows(table.signature, rows, self.device, self.chunk_length)
            return self.on_device

        mirror = open_mirror(
            table,
            shape,
            stride=self.stride,
            chunk_length=self.chunk_length,
            limit_bytes=_MIRROR_BYTES * self.what.mirrored,
            elsewhere=keep if self.what.rows else None,
        )
        if mirror is not None:
            self.what.opened(mirror)
        return OpenedSource(connect(mirror, shape.in_flight), mirror)


@contextmanager
def feed(config: RunConfig, address: str, what: Feed, threads: int) -> Iterator[DatasetBatches]:
    """Open a learner's feed to the training thread."""
    spec, device = spec_of(config.env), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    agent = build_agent(config.agent, spec, str(device), seed=1)
    learner = dataclasses.replace(
        config.learner,
        updates_per_env_step=0.0,
        batches_per_sample=what.batches,
        mirror_mib=-1 if what.mirrored else 0,
    )
    batch_size = config.agent.batch_size
    table = table_config(config.table, learner, agent, stored_columns(config.agent, spec), batch_size)
    batches = batches_per_sample(config.table, learner, table.signature, batch_size, table.max_item_steps)
    rows = FeedRows(what, agent.window.stride, config.table.chunk_length, device)
    dataset = ReplayDataset(
        address,
        table,
        batch_size,
        beta=importance_sampling_exponent(config.table, 0),
        transform=ToDevice(agent, device, lambda: rows.on_device),
        decoding=Decoding(threads=threads, encoded=decoded_later(agent, table.signature), history=agent.window.history),
        prefetch=threads + 1,
        batches_per_sample=batches,
        keep=rows,
        create=True,
    )
    with dataset:
        yield DatasetBatches(dataset)


def rate(loader: DatasetBatches, seconds: float, warm_s: float) -> float:
    """Return batches per second, each dropped once it is on the device, after some that are not counted."""
    for bound_s in (warm_s, seconds):
        taken, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < bound_s:
            if (batch := loader.take(1.0)) is not None:
                taken += 1
                if batch.device_batch.event is not None:
                    batch.device_batch.event.synchronize()
    return taken / elapsed


def launches(seconds: float) -> float:
    """Return how often per second a thread gets through the small operators of an update."""
    with torch.no_grad():
        small = [torch.ones(64, 64) for _ in range(2)]
        done, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            for _ in range(_OPERATORS):
                torch.add(small[0], small[1])
            done += 1
    return done / elapsed


def take_until(ended: threading.Event, loader: DatasetBatches) -> None:
    """Take batches at the rate of a fast GPU."""
    due = time.perf_counter()
    while not ended.wait(max(due - time.perf_counter(), 0.0)):
        loader.take(1.0)
        due += 1.0 / _FED_BATCHES_PER_S


def launches_beside(loader: DatasetBatches, seconds: float) -> float:
    """Return the same while another thread takes batches."""
    ended = threading.Event()
    thread = threading.Thread(target=take_until, args=(ended, loader))
    thread.start()
    try:
        return launches(seconds)
    finally:
        ended.set()
        thread.join()


def launches_beside_process(case: Case, address: str, threads: int, seconds: float) -> float:
    """Return the same while another process takes batches, from a mirror that is filled."""
    command = [sys.executable, "-m", "benchmarks.feed", "--case", case.name, "--take-from", address]
    command += ["--threads", str(threads), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdout is not None
        if _WARM not in iter(taker.stdout.readline, b""):  # after lines of its log
            raise SystemExit("the process that takes batches has ended")
        return launches(seconds)  # the end of the block closes its input


def take_for_another_process(config: RunConfig, address: str, threads: int, warm_s: float) -> None:
    """Take batches from the moment when a line is written until standard input ends."""
    ended = threading.Event()

    def end() -> None:
        sys.stdin.read()
        ended.set()

    with feed(config, address, Feed(), threads) as loader:
        rate(loader, 1.0, warm_s)
        threading.Thread(target=end, daemon=True).start()
        sys.stdout.buffer.write(_WARM)
        sys.stdout.buffer.flush()
        take_until(ended, loader)


def measure(case: Case, env_steps: int, rounds: int, seconds: float, threads: int) -> list[Row]:
    """Measure one case; every variant once per round, in turns."""
    items: dict[str, list[float]] = {name: [] for name in FEEDS}
    in_another = "mirrored, in a separate process"
    beside: dict[str, list[float]] = {
        name: [] for name in ("alone", "mirrored", in_another, "mirrored, index arrays alone", "unmirrored")
    }
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        config, path = case.config(), case.write(Path(folder))
        with servers(config, path, env_steps) as options:
            address = options[options.index("--cluster.replay") + 1]
            for _ in range(rounds):
                for name, what in FEEDS.items():
                    with feed(config, address, what, threads) as loader:
                        warm_s = seconds if what.mirrored else 1.0
                        items[name].append(rate(loader, seconds, warm_s) * config.agent.batch_size)
                        if name in beside:
                            beside[name].append(launches_beside(loader, seconds))
                of_another = launches_beside_process(case, address, threads, seconds)
                beside[in_another].append(of_another)
                beside["alone"].append(launches(seconds))
    per = f"{case.name}, {threads} threads"
    return [
        *(row(f"feed {name} against unmirrored, {per}", "items/s", items[name], items["unmirrored"]) for name in FEEDS),
        *(
            row(
                f"launches beside the feed at 100 batches/s {name}, against alone, {per}",
                "1/s",
                beside[name],
                beside["alone"],
            )
            for name in beside
            if name != "alone"
        ),
    ]


def main() -> None:
    """Measure and write benchmarks/results/feed.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="nature_dueling_dqn_512", choices=sorted(CASES))
    parser.add_argument("--env-steps", type=int, default=100_000, help="steps in the table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="that decode")
    parser.add_argument("--take-from", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, map(int, cores()))
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.take_from:
        return take_for_another_process(
            CASES[options.case].config(), options.take_from, options.threads[0], options.seconds
        )
    rows = [
        found
        for threads in options.threads
        for found in measure(CASES[options.case], options.env_steps, options.rounds, options.seconds, threads)
    ]
    return write("feed", rows)


if __name__ == "__main__":
    main()
