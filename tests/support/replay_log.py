"""A replay service with a log, as a process, under load or read to its last item."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.replay_service import ServerProcess, open_appender
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S
from tidemill.replay.table_config import SelectorConfig, SelectorKind
from tidemill.replay.writing.appender import StreamAppender

RANKED = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_items=100_000)


def options(folder: Path, **others: object) -> tuple[str, ...]:
    """Return the command line of a server with a log."""
    settings = {"folder": folder, **others}
    return tuple(
        word for name, value in settings.items() for word in (f"--replay.storage.{name.replace('_', '-')}", str(value))
    )


def write(appender: StreamAppender, first: int, stream: int = 0) -> None:
    """Append one chunk of four steps with an item of one step at each."""
    items = make_items(0, [(0, i, 1) for i in range(4)], [1.0 + first + i for i in range(4)])
    appender.append([make_chunk(stream, 0, first, 4)], [items], timeout_s=WAIT_S)


class Load:
    """Threads that write one stream each until they are told to stop."""

    def __init__(self, address: str, writers: int) -> None:
        self.appenders = [open_appender(address, f"actor-{i}") for i in range(writers)]
        self.written = [0] * writers
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(writers)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            write(self.appenders[number], self.written[number], number)
            self.written[number] += 4

    @property
    def acknowledged(self) -> int:
        """Steps the server has said it stored."""
        return sum(self.written) - 4 * sum(appender.unacknowledged_chunks for appender in self.appenders)

    def stop(self) -> None:
        """Let every writer end and flush."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for appender in self.appenders:
            assert appender.flush(WAIT_S)

    def close(self) -> None:
        """End the connections."""
        self._stop.set()
        for appender in self.appenders:
            appender.close()
        for thread in self._threads:
            thread.join(WAIT_S)


@contextmanager
def load(address: str, writers: int = 3) -> Iterator[Load]:
    """Write under way."""
    running = Load(address, writers)
    try:
        yield running
    finally:
        running.close()


def kill(server: ServerProcess) -> None:
    """End a server as the kernel would for want of memory."""
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait(WAIT_S)
