"""A `tidemill` command in a separate process, watched line by line, and the processes it leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.forked_service import fork_read
from tests.support.waiting import WAIT_S
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.learner.client import LearnerClient
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import ForkClient

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = max(200.0, 1.5 * WAIT_S)
"""A cluster is ready within ten seconds; a machine that many tests share may need twenty times as long."""

TRAINED_S = 3000.0
"""Only ever reached by a training that hangs: one that does not learn is ended by its number of steps."""

STARTS_SERVICES = ("train", "resume", "sweep")
"""Commands that fork services, for which they get a server."""


class Launched:
    """A running command."""

    def __init__(self, *arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
        """Start `tidemill ARGUMENTS`, with more variables in its environment; it is forked, as are its services."""
        self.process = fork_read(
            "tidemill.services.launcher",
            arguments,
            environment,
            str(cwd),
            with_server=arguments[0] in STARTS_SERVICES,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything it printed so far."""
        return "\n".join(self.lines)

    def until(self, pattern: str, *, count: int = 1, since: int = 0) -> str:
        """Wait until `count` lines after the first `since` match a pattern; return the last of them."""

        def found() -> list[str]:
            return [line for line in self.lines[since:] if re.search(pattern, line)]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._has_ended, BOUND_S)
            assert len(found()) >= count, f"no {pattern!r} in:\n{self.output}"
            return found()[count - 1]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the launcher alone."""
        self.process.send_signal(number)

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Wait for its end; return the exit code."""
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"not ended within {bound_s:g} s:\n{self.output}") from error
        self._reader.join(BOUND_S)
        return code

    def children(self) -> dict[str, int]:
        """Return the process ids of the services it started that are alive, by name of the module's package."""
        return services_of(self.process.pid)

    def close(self) -> None:
        """End it and whatever it left."""
        self.process.kill()
        self.process.wait()
        for pid in self.children().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(BOUND_S)

    def _read(self) -> None:
        with self.process.stdout as stdout:  # only its reader can close it: another thread would wait for the end
            for line in stdout:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


@contextmanager
def launched(*arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> Iterator[Launched]:
    """Yield a running command; nothing of it is left afterwards."""
    command = Launched(*arguments, cwd=cwd, environment=environment)
    try:
        yield command
    finally:
        command.close()


def ended(
    *arguments: str,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    server: ForkClient | None = None,
    bound_s: float = BOUND_S,
) -> tuple[int, str]:
    """Run a command to its end; return its exit code and what it printed. `server` forks it, if given."""
    with_server = arguments[0] in STARTS_SERVICES
    module = "tidemill.services.launcher"
    command = fork_read(module, arguments, environment, str(cwd), with_server=with_server, server=server)
    try:
        said, _ = command.communicate(bound_s)
    finally:
        command.kill()
        command.wait()
    assert command.returncode is not None
    return command.returncode, said


def tidemill(*arguments: str, bound_s: float = BOUND_S) -> str:
    """Run a command to its end, which must be a good one; return what it printed."""
    code, said = ended(*arguments, bound_s=bound_s)
    assert code == 0, said
    return said


def services_of(launcher_pid: int) -> dict[str, int]:
    """Return the services a launcher started that are alive, by name: `replay`, `actor` and so on.

    They carry the launcher's process id in their environment, so they are found even after it was killed.
    """
    mark = f"{PARENT_VARIABLE}={launcher_pid}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and b"-m" in words:
            module = next(word for word in words[words.index(b"-m") + 1 :] if word != b"tidemill.programs.child")
            found[module.decode().removeprefix("tidemill.services.")] = int(folder.name)
    return found


def learner_of(folder: Path) -> LearnerClient:
    """Return a client of the learner of a running cluster."""
    config = from_document(RunConfig, read_document(folder / "cluster.yaml"))
    return LearnerClient(config.cluster.learner)
