"""Tidemill's replay service and Reverb, behind the same few commands; each server and client is a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.processes import processor_s
from benchmarks.replay_frames import cached_path
from benchmarks.replay_roles import TABLE
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableConfig

_START_S = 120.0
_ROLES = Path(__file__).parent / "reverb_roles.py"


@dataclass(frozen=True)
class Server:
    """A replay process that serves the benchmark's table."""

    address: str
    pid: int

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Return the processor time it has used."""
        return processor_s(self.pid)


class Contender(Protocol):
    """The measurements."""

    def server(self) -> contextlib.AbstractContextManager[Server]:
        """Run a server with an empty table."""

    def role(self, name: str, address: str, **options: object) -> subprocess.Popen[str]:
        """Start a client process: `write` or `sample`, which print a rate."""


class Tidemill:
    """This project's."""

    def __init__(
        self, *server_options: str, table: TableConfig = TABLE, roles: str = "benchmarks.replay_roles"
    ) -> None:
        """Take further options of the server, another table than the benchmark's, and the module of the clients."""
        self._server_options, self._table, self._roles = server_options, table, roles

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """Run a server with an empty table."""
        command = [sys.executable, "-m", "tidemill.services.replay", "--replay.server.address", "127.0.0.1:0"]
        with _running([*command, *self._server_options], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            found = next(filter(None, (re.search(r"address=(\S+)", line) for line in process.stderr)))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or a full pipe would stop it
            with ReplayClient(found[1]) as client:
                client.create_table(self._table)
            yield Server(found[1], process.pid)

    def role(self, name: str, address: str, **options: object) -> subprocess.Popen[str]:
        """Start a client process."""
        command = [sys.executable, "-m", self._roles, name, address, *_flags(options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Reverb:
    """DeepMind's, from its own environment."""

    def __init__(self, python: Path, chunk_length: int = 0) -> None:
        """Take its interpreter, and the length of chunks its writers make, 0 for its own choice."""
        self._python, self._chunk_length = str(python), chunk_length

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """Run a server with an empty table."""
        command = [self._python, str(_ROLES), "serve"]
        with _running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield Server(f"localhost:{started['port']}", started["pid"])

    def role(self, name: str, address: str, **options: object) -> subprocess.Popen[str]:
        """Start a client process."""
        options.pop("actor_id", None)
        if name == "write":
            options |= {"frames": cached_path(), "chunk_length": self._chunk_length}
        command = [self._python, str(_ROLES), name, "--address", address, *_flags(options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def _running(command: list[str], **pipes: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _flags(options: dict[str, object]) -> list[str]:
    return [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
