"""Rendezvous hashing: who goes where without anybody being asked (Thaler & Ravishankar, 1998)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_PERSON = b"tidemill-58831"
"""Makes this a hash of our own. The number is one by which the launcher's first sixteen actors, `actor-0` and so on,
spread evenly over two, three and four listed shards: with so few, chance alone would often leave a shard empty."""


def ranked(key: str, shards: Iterable[str]) -> tuple[str, ...]:
    """Return the shards in the order in which `key` prefers them; the same for every process.

    A shard that leaves moves only the keys that had it first, and one that joins takes an even share from all others.
    """
    return tuple(sorted(set(shards), key=lambda shard: (_weight(key, shard), shard), reverse=True))


def _weight(key: str, shard: str) -> bytes:
    key_bytes = hashlib.sha256(key.encode()).digest()
    return hashlib.blake2b(shard.encode(), key=key_bytes, digest_size=8, person=_PERSON).digest()
