"""Rendezvous hashing: who goes where without anybody being asked (Thaler & Ravishankar, 1998)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranked(key: str, shards: Iterable[str]) -> tuple[str, ...]:
    """Return the shards in the order in which `key` prefers them; the same for every process.

    A shard that leaves moves only the keys that had it first, and one that joins takes an even share from all others.
    """
    return tuple(sorted(set(shards), key=lambda shard: (_weight(key, shard), shard), reverse=True))


def _weight(key: str, shard: str) -> bytes:
    return hashlib.blake2b(shard.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=8).digest()
