"""How much memory a server may take where no setting says so."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def default_budget_bytes(shards: int, cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """Return three quarters of the memory of this container, or the machine's half divided among its shards.

    Args:
        shards: Replay servers that may be on this machine.
        cgroup_limit: File that has the container's limit in bytes, or `max`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container = int(cgroup_limit.read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        container = machine
    return container // 4 * 3 if container < machine else machine // 2 // shards
