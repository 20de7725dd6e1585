"""The memory and the processor time of the container that a process runs in, as its control groups state them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidemill import linux

_ROOT = linux.CGROUPS
_OWN = linux.PROC / "self/cgroup"
_NO_LIMIT_BYTES = 2**60
"""Version 1 states no limit as a number near 2^63."""


def memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return the smallest limit of this process's group and of those around it; None without a limit."""
    return min((limit for limit, _ in _memory(root, own)), default=None)


def machine_memory_bytes() -> int:
    """Return the memory of the whole machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return the amount that is left below every limit; None without a limit.

    Files that were read and are not in use count as free: the kernel drops them before it refuses memory.
    """
    return min((max(limit - used, 0) for limit, used in _memory(root, own)), default=None)


def available_memory_bytes(meminfo: Path = linux.PROC / "meminfo") -> int | None:
    """Return the memory that can be taken, of the machine and below every limit; None if unknown."""
    found = [each for each in (linux.available_memory_bytes(meminfo), free_memory_bytes()) if each is not None]
    return min(found, default=None)


def cpus(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return how many threads can compute at the same time, at least 1.

    That is how many processors this process may use (`taskset`, `--cpuset-cpus`, a job of Slurm), or fewer by the
    smallest quota of its groups (`--cpus 1.5` is 1, for a thread more would only make all wait for the next period).
    """
    allowed = len(linux.allowed_processors())
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root, own))]))


def _memory(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each group with a limit."""
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    new = ("memory.max", "memory.current", "inactive_file")
    for folder, is_old in _groups(root, own, "memory"):
        limit_file, used_file, cache = old if is_old else new
        try:
            limit = int((folder / limit_file).read_text(encoding="utf-8"))
            used = int((folder / used_file).read_text(encoding="utf-8"))
            stat = (folder / "memory.stat").read_text(encoding="utf-8")
        except (OSError, ValueError):  # not there, or `max`
            continue
        if limit < _NO_LIMIT_BYTES:
            dropped = [int(line.split()[1]) for line in stat.splitlines() if line.startswith(f"{cache} ")]
            yield limit, used - sum(dropped)


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """Yield the processors that each group with a quota may use at the same time."""
    for folder, is_old in _groups(root, own, "cpu"):
        try:
            if is_old:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = (int((folder / name).read_text(encoding="utf-8")) for name in names)
            else:
                quota, period = map(int, (folder / "cpu.max").read_text(encoding="utf-8").split())
        except (OSError, ValueError):  # not there, or `max`
            continue
        if quota > 0:  # -1: none
            yield quota / period


def _groups(root: Path, own: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of a process's group and of each around it, and whether it is of version 1.

    Folders that a container does not see may not be there.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        lines = []
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    paths = {kind: path for _, kinds, path in fields for kind in kinds.split(",")}
    for base, path, is_old in (
        (root, paths.get("", "/"), False),
        (root / controller, paths.get(controller, "/"), True),
    ):
        folder = base / path.strip("/")
        folders = [folder, *folder.parents]
        for each in folders[: folders.index(base) + 1]:
            yield each, is_old
