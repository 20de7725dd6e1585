"""Cost of TLS and a token to the replay service: over loopback TCP with both and without, in short turns.

A server with them and one without run side by side, and one client process has connections to both. It works with one
for a moment, then with the other, again and again, the first of each pair changing, so that what else happens on the
machine meets both. A ratio is the median over the pairs: of transitions per second, and of the processor time that
client and server together take per transition, which other programs on the machine disturb less.

    python -m benchmarks.replay_tls [--pairs 100] [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.replay import Row, machine
from benchmarks.replay_contenders import Server, Tidemill
from benchmarks.replay_frames import NUM_ENVS, cached_steps
from benchmarks.replay_roles import CHUNK_LENGTH, FRAME_STACK, GAMMA, N_STEPS, SIGNATURE, TABLE, WINDOW, Writer
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.rl.transitions import transitions
from tidemill.rpc.client_security import CA, TOKEN_FILE
from tidemill.services.tools.certs import make

_RESULTS = Path(__file__).parent / "results" / "replay_tls.json"
_FILL_CALLS = 200
_BATCH_SIZE = 256
_MIRRORED_CHUNKS = 2 * _FILL_CALLS * NUM_ENVS
_FLUSH_S = 120.0

Work = Callable[[], int]
"""Does a little of it; returns how many transitions that were."""


@dataclass(frozen=True)
class Slice:
    """One moment with one of the two servers: transitions per second, and processor seconds per transition."""

    rate: float
    cpu_s: float


class Side:
    """A server, a writer and a sampler connected to it."""

    def __init__(self, resources: contextlib.ExitStack, *server_options: str) -> None:
        """Start the server, connect, and fill the table."""
        self._server: Server = resources.enter_context(Tidemill(*server_options).server())
        self._writer = Writer(self._server.address, "writer")
        resources.enter_context(self._writer.appender)
        self._steps = cached_steps()
        self._starts = itertools.cycle(range(0, self._steps.reward.shape[1], CHUNK_LENGTH))
        for _ in range(_FILL_CALLS):
            self._write()
        self._writer.appender.flush(_FLUSH_S)
        address = [self._server.address]
        self._client = resources.enter_context(ReplayClient(*address))
        whole = ReplaySampler(address, TABLE, _BATCH_SIZE, create=True)
        self._batches = resources.enter_context(whole)
        mirror = TableMirror(SIGNATURE, MirrorSize(_MIRRORED_CHUNKS, CHUNK_LENGTH, hold=8))
        servers = resources.enter_context(contextlib.closing(ShardDirectory(address)))
        kept = SampleStream(servers, TABLE, _BATCH_SIZE, mirror=mirror)
        self._kept_batches = resources.enter_context(contextlib.closing(kept))
        self._rng = np.random.default_rng(0)

    def insert(self) -> int:
        """Append a chunk of every environment until all are acknowledged."""
        for _ in range(16):
            self._write()
        self._writer.appender.flush(_FLUSH_S)
        return 16 * CHUNK_LENGTH * NUM_ENVS

    def _write(self) -> None:
        self._writer.write(self._steps, next(self._starts))

    def sample_mirrored(self) -> int:
        """Take a batch whose chunks are kept from before, as a learner's mostly are, and set its priorities."""
        return self._take(self._kept_batches)

    def sample(self) -> int:
        """Take a batch with all its chunks, and set its priorities."""
        return self._take(self._batches)

    def _take(self, batches: ReplaySampler | SampleStream) -> int:
        batch = batches.take(_FLUSH_S)
        assert batch is not None
        self._client.update_priorities(TABLE.name, batch.keys, self._rng.random(len(batch.keys)))
        return len(batch.keys)

    def sample_decoded(self) -> int:
        """Take a batch, make it the arrays that a learner trains on, and set its priorities."""
        batch = next(self._batches)
        decoded = decode(SIGNATURE, batch, WINDOW.length)
        arrays = transitions(decoded.columns, decoded.index, FRAME_STACK, N_STEPS, GAMMA)
        self._client.update_priorities(TABLE.name, batch.keys, self._rng.random(len(batch.keys)))
        return len(arrays["n_step_return"])

    def measured(self, work: Work, seconds: float) -> Slice:
        """Do some work for a time."""
        count, began, used = 0, time.monotonic(), self._used_s()
        while time.monotonic() - began < seconds:
            count += work()
        return Slice(count / (time.monotonic() - began), (self._used_s() - used) / count)

    def _used_s(self) -> float:
        return time.process_time() + self._server.cpu_s()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Let the channels that are opened in the block be secured."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def measure(secured: Side, plain: Side, pairs: int, seconds: float) -> Iterator[Row]:
    """Yield a row per kind of work."""
    kinds: dict[str, Callable[[Side], Work]] = {
        f"sample, mirrored, batch {_BATCH_SIZE}": lambda side: side.sample_mirrored,
        f"sample, whole chunks, decoded, batch {_BATCH_SIZE}": lambda side: side.sample_decoded,
        f"sample, whole chunks, batch {_BATCH_SIZE}": lambda side: side.sample,
        "insert, 1 writer": lambda side: side.insert,
    }
    for name, work in kinds.items():
        found: dict[bool, list[Slice]] = {True: [], False: []}
        for pair in range(pairs + 2):
            for is_secured in (pair % 2 == 0, pair % 2 == 1):
                side = secured if is_secured else plain
                taken = side.measured(work(side), seconds)
                found[is_secured] += [taken] if pair >= 2 else []  # the first ones warm up
        yield row(name, found[True], found[False])


def row(name: str, secured: list[Slice], plain: list[Slice]) -> Row:
    """Return medians and, for each ratio, the median over the pairs with its quartiles."""
    both = list(zip(secured, plain, strict=True))
    rates = statistics.quantiles((a.rate / b.rate for a, b in both), n=4, method="inclusive")
    times = statistics.quantiles((a.cpu_s / b.cpu_s for a, b in both), n=4, method="inclusive")
    return {
        "name": name,
        "tls_per_s": round(statistics.median(slice_.rate for slice_ in secured)),
        "plain_per_s": round(statistics.median(slice_.rate for slice_ in plain)),
        "rate_ratio": [round(value, 3) for value in rates],
        "cpu_ratio": [round(value, 3) for value in times],
        "pairs": len(both),
    }


def main() -> None:
    """Measure, print a table and write benchmarks/results/replay_tls.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100, help="turns of each of the two, per figure")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn")
    options = parser.parse_args()
    described, rows = machine(), []
    with contextlib.ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-certs-")))
        make(folder)
        files = {"tls-cert": "server.pem", "tls-key": "server.key", "tokens": "tokens.txt"}
        words = [word for name, file in files.items() for word in (f"--replay.server.{name}", str(folder / file))]
        with _environment({CA: str(folder / "ca.pem"), TOKEN_FILE: str(folder / "operator.token")}):
            secured = Side(resources, *words)
        for result in measure(secured, Side(resources), options.pairs, options.seconds):
            rows.append(result)
            print(json.dumps(result), flush=True)
    document = {"machine": described, "seconds": options.seconds, "quartiles": "25, 50, 75 %", "rows": rows}
    _RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
