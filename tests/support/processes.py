"""Processes of the machine, as /proc shows them, and one that is stopped for a while."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.waiting import wait_until


def children_of(pid: int) -> set[int]:
    """Return the child processes of a process's first thread."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()))


def runs(pid: int) -> bool:
    """True if a process is there that is not only waiting to be reaped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    return False


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(descriptor))
    return {link[len("socket:[") : -1] for link in found if link.startswith("socket:")}


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB; 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def stop_beyond(program: subprocess.Popen[bytes], seconds: float, meanwhile: Callable[[], object] = str) -> None:
    """Stop a program that has printed a line, as Ctrl-Z does, for longer than so many seconds; then continue it."""
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    wait_until(lambda: time.monotonic() - began_s > seconds, "a stop beyond a limit")
    meanwhile()
    program.send_signal(signal.SIGCONT)
