"""Which of several equal actors this one is, where nobody has told it."""

from __future__ import annotations

import re
import zlib

import structlog

_NUMBERED = re.compile(r"[-_](\d+)$")

_log = structlog.get_logger()


def actor_index(index: int | None, actor_id: str, dns_name: str = "") -> int:
    """Return the number of an actor: as set, or of its name in DNS, or one drawn from its name.

    Replicas of one container differ in their names alone; without numbers of their own they would all play the same
    episodes.

    Args:
        index: As set; None if it was not.
        actor_id: Name of the actor.
        dns_name: What DNS calls its container, e.g. `run-actor-3.run_cluster`: Compose counts from 1.
    """
    if index is not None:
        return index
    if numbered := _NUMBERED.search(dns_name.partition(".")[0]):
        return max(int(numbered[1]) - 1, 0)
    if dns_name:
        _log.warning("the container's name has no number; the actor draws its own", name=dns_name)
    return zlib.crc32(actor_id.encode())
