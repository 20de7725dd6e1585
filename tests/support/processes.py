"""Processes of the machine, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
