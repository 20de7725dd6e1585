"""How much of the machine a process uses, from /proc; nothing where there is none."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """What one process used lately."""

    cpu_fraction: float
    """Share of one core since the last look, 0 to the number of cores."""
    memory_bytes: int
    """Resident memory."""


class UsageMeter:
    """Remembers the CPU time of each process to tell its share since the last look."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read below `proc`."""
        self._proc = proc
        self._last: dict[int, tuple[float, float]] = {}

    def look(self, pid: int | None) -> Usage | None:
        """Return the usage of a process; None if it has ended, or the system does not tell."""
        if pid is None:
            return None
        try:
            # The name in parentheses may hold blanks; after it come the fields of proc(5) from the third.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        now_s = time.monotonic()
        last_s, last_cpu_s = self._last.get(pid, (now_s, cpu_s))
        self._last[pid] = (now_s, cpu_s)
        share = (cpu_s - last_cpu_s) / (now_s - last_s) if now_s > last_s else 0.0
        return Usage(share, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
