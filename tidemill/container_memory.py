"""The memory of the container that a process runs in, as its control groups state it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NO_LIMIT_BYTES = 2**60
"""Version 1 states no limit as a number near 2^63."""


def limit_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return the smallest limit of this process's group and of those around it; None without a limit."""
    return min((limit for limit, _ in _groups(root, own)), default=None)


def free_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return what may still be taken below every limit; None without a limit.

    Files that were read and are not in use count as free: the kernel drops them before it refuses memory.
    """
    return min((max(limit - used, 0) for limit, used in _groups(root, own)), default=None)


def _groups(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each group with a limit: versions 1 and 2, nested ones too."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        lines = []
    paths = {kind: path for _, kind, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    yield from _up(root, paths.get("", "/"), "memory.max", "memory.current", "inactive_file")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    yield from _up(root / "memory", paths.get("memory", "/"), *names)


def _up(root: Path, path: str, limit_file: str, used_file: str, cache: str) -> Iterator[tuple[int, int]]:
    """Yield what a group and all above it say; those that a container does not see are left out."""
    folder = root / path.strip("/")
    folders = [folder, *folder.parents]
    for each in folders[: folders.index(root) + 1]:
        try:
            limit = int((each / limit_file).read_text(encoding="utf-8"))
            used = int((each / used_file).read_text(encoding="utf-8"))
            stat = (each / "memory.stat").read_text(encoding="utf-8")
        except (OSError, ValueError):  # not there, or `max`
            continue
        if limit < _NO_LIMIT_BYTES:
            dropped = [int(line.split()[1]) for line in stat.splitlines() if line.startswith(f"{cache} ")]
            yield limit, used - sum(dropped)
