"""Processor time and memory of processes as Linux counts them (proc(5)), and a port for one to listen on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def busy_s() -> float:
    """Return the seconds that all processors together were busy since the machine started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:8])
    return (user + nice + system + irq + softirq) * TICK_S


def memory_mib(pid: int) -> float:
    """Return the proportional memory (PSS) of a process: pages that several share count once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
