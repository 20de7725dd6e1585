"""Replay shards as processes, writers that know what was acknowledged, and what is stored in the end."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.replay_service import CHUNK_LENGTH, ServerProcess, everything
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, crowd
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.placement import ShardPlacement
from tidemill.replay.table_config import shard_config
from tidemill.replay.writing.append_call import StreamRestarted
from tidemill.replay.writing.appender import StreamAppender

TABLE = make_config(max_items=300_000)
COUNT = 3

Item = tuple[int, int]
"""Number of a life, and step."""


class Shards:
    """Three replay servers, each a process."""

    def __init__(self, folder: Path) -> None:
        """Start them on Unix sockets in a folder, whose path must be short; their logs are there, too."""
        self._folder = folder
        self.addresses = [f"unix://{folder}/{shard}.sock" for shard in range(COUNT)]
        self._processes = [self._started(shard) for shard in range(COUNT)]

    def signal(self, shard: str, number: signal.Signals) -> None:
        """Send a signal to a shard's process."""
        self._processes[int(shard)].process.send_signal(number)

    def kill(self, shard: str) -> None:
        """Kill a shard."""
        self._processes[int(shard)].close()

    def start(self, shard: str) -> None:
        """Start a killed shard again."""
        self._processes[int(shard)] = self._started(int(shard))

    def stored(self) -> dict[str, list[Item]]:
        """Return every item of every shard."""
        return {
            str(shard): everything(address, shard_config(TABLE, COUNT)) for shard, address in enumerate(self.addresses)
        }

    def close(self) -> None:
        """Leave nothing running."""
        for process in self._processes:
            process.process.send_signal(signal.SIGCONT)
            process.close()

    def _started(self, shard: int) -> ServerProcess:
        return ServerProcess(self.addresses[shard], "--replay.storage.folder", f"{self._folder}/log-{shard}")


@dataclass
class Life:
    """Streams between two moves of a writer."""

    number: int
    shard: str
    chunks: int = 0
    acknowledged: int = 0

    @property
    def items(self) -> set[Item]:
        """What was acknowledged."""
        return {(self.number, step) for step in range(self.acknowledged * CHUNK_LENGTH)}


_LIVES = itertools.count()


@dataclass
class Writer:
    """An actor: appends one chunk after the other, each step an item, until it is stopped."""

    directory: ShardDirectory
    name: str
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._placement = ShardPlacement(self.name, dead_s=2.0, patience_s=1.0)
        self.appender = StreamAppender(
            self.directory,
            self.name,
            1,
            SIGNATURE,
            ("t",),
            CHUNK_LENGTH,
            max_in_flight_chunks=8,
            placement=self._placement,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def shard(self) -> str:
        """The shard written to."""
        return str(self._placement.shard)

    def stop(self) -> None:
        """End the writing once everything is acknowledged."""
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Leave nothing running."""
        self._stop.set()
        self.appender.close()  # ends what the thread waits for
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # raised by `stop`
            self._error = error

    def _write(self) -> None:
        dropped = 0
        life = self._begin()
        while not self._stop.wait(0.1):  # below 65,536 items a shard in all, which one batch can read back
            chunk = make_chunk(life.number, 0, life.chunks * CHUNK_LENGTH, CHUNK_LENGTH)
            items = make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])
            try:
                if self.appender.append([chunk], [items]):
                    life.chunks += 1
            except StreamRestarted:
                life.acknowledged = life.chunks - (self.appender.dropped_chunks - dropped)
                dropped, life = self.appender.dropped_chunks, self._begin()
        assert self.appender.flush(WAIT_S)
        life.acknowledged = life.chunks

    def _begin(self) -> Life:
        life = Life(next(_LIVES), self.shard)
        self.lives.append(life)
        return life


class Taker:
    """A learner: takes batches one after the other; the longest wait for one is bounded."""

    BOUND_S = 5.0 + 10.0 * crowd()  # below the minute that gRPC's own limit for a ping takes

    def __init__(self, stream: SampleStream) -> None:
        """Start to take."""
        self.stream, self.batches = stream, 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; fail if a batch took longer than the bound."""
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.05):
                assert self.stream.take(self.BOUND_S) is not None, f"no batch within {self.BOUND_S:g} s"
                self.batches += 1
        except BaseException as error:  # raised by `stop`
            self._error = error


@contextmanager
def writers(directory: ShardDirectory, count: int) -> Iterator[list[Writer]]:
    """Run so many writers."""
    with ExitStack() as stack:
        running = [Writer(directory, f"writer-{number}") for number in range(count)]
        for writer in running:
            stack.callback(writer.close)
        yield running
