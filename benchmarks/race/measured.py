"""A command run to its end: seconds, processor time and peak memory of all its processes, and the load of others."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import busy_s, memory_mib

_SET_CHILD_SUBREAPER = 36  # prctl(2): what a descendant leaves behind becomes a child of this process
_EVERY_S = 2.0  # between two samples of memory: reading the pages of six processes takes some 50 ms
_LEFT_S = 5.0  # for what outlives the command before it is killed


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    code: int
    """Exit code; negative: the signal that ended it."""
    is_late: bool
    """Whether it was stopped at its limit."""
    wall_s: float
    """From its start to its end."""
    processor_s: float
    """User and system time of all its processes."""
    peak_mib: float
    """Largest sum of the proportional memory (PSS) of its processes: pages that several share count once."""
    others_cores: float
    """Cores that processes of others kept busy meanwhile."""


def measure(command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str]) -> Measured:
    """Run a command in a new session, its output appended to a log, and measure it.

    Whatever it leaves behind is killed.

    Args:
        command: The program and its arguments.
        log: File of its output.
        limit_s: Seconds after which it is stopped.
        environment: All of its variables.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before_s, own_s, spent_s = busy_s(), _own_s(), _children_s()
    with log.open("ab") as output:
        started_s = time.monotonic()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )
        watch = _Watch(child.pid, started_s + limit_s)
        try:
            code = child.wait()
        except BaseException:  # this program is to end
            _kill_group(child.pid)
            raise
        finally:
            wall_s = time.monotonic() - started_s
            watch.end()
            _end_descendants()
    processor_s = _children_s() - spent_s
    others_s = busy_s() - before_s - (_own_s() - own_s) - processor_s
    return Measured(code, watch.is_late, wall_s, processor_s, watch.peak_mib, max(others_s, 0.0) / wall_s)


class _Watch:
    """A thread that samples the memory of this process's descendants, and ends a command that is late."""

    def __init__(self, pid: int, deadline_s: float) -> None:
        self._pid, self._deadline_s = pid, deadline_s
        self.peak_mib = 0.0
        self.is_late = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(max(min(_EVERY_S, self._deadline_s - time.monotonic()), 0.01)):
            if time.monotonic() > self._deadline_s:
                self.is_late = True
                _kill_group(self._pid)
                return
            self.peak_mib = max(self.peak_mib, sum(map(_memory_mib, _descendants())))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _end_descendants() -> None:
    """Wait for what a command has left behind, then kill it."""
    deadline_s = time.monotonic() + _LEFT_S
    while _has_children():
        if time.monotonic() > deadline_s:
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _has_children() -> bool:
    """Collect the children that have ended; return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """Return the processes below this one."""
    parents = dict(_parents())
    own, found = os.getpid(), []
    for pid, parent in parents.items():
        above = parent
        while above in parents and above != own:
            above = parents[above]
        if above == own:
            found.append(pid)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _memory_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        return memory_mib(pid)
    return 0.0


def _own_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
