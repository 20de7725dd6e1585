"""Choice of the shard that an actor writes to: rendezvous hashing, and when to move. Decisions only, no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

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


DEAD_S = 6.0
"""A shard is dead when questions asked over so long a time were all left unanswered, in seconds."""

PATIENCE_S = 15.0
"""How long a new shard must answer without a break before actors move to it, in seconds; twice that after a fault."""

_MOST_PATIENCE_S = 480.0


@dataclass(slots=True)
class _Health:
    """Health of a shard; empty for one that was never asked.

    Attributes:
        answers: Whether the newest question was answered; None if there was none.
        since_s: When the first of all newest questions with the same outcome was asked.
        until_s: When the last of them was asked.
        patience_s: How long it must be well before the actor goes to it from another.
    """

    patience_s: float
    answers: bool | None = None
    since_s: float = 0.0
    until_s: float = 0.0

    def is_dead(self, dead_s: float) -> bool:
        """Whether it has not answered for so many seconds."""
        return self.answers is False and self.until_s - self.since_s >= dead_s

    @property
    def is_welcome(self) -> bool:
        """Whether it has answered for long enough."""
        return self.answers is True and self.until_s - self.since_s >= self.patience_s


class ShardPlacement:
    """The actor's shard: the first by rendezvous hash that is alive.

    It is left when it is dead, for the next one that answers. It is gone back to when it has answered for a while
    without a break, for twice as long each time it was left, so that one that comes and goes does not keep its actors
    moving. Times are seconds of one monotonic clock, those at which questions were asked: how late an answer is looked
    at changes nothing.
    """

    def __init__(self, actor_id: str, *, dead_s: float = DEAD_S, patience_s: float = PATIENCE_S) -> None:
        """Begin without a shard; see `DEAD_S` and `PATIENCE_S`."""
        self._actor_id, self._dead_s, self._patience_s = actor_id, dead_s, patience_s
        self._health: dict[str, _Health] = {}
        self.shard: str | None = None
        """The shard the actor writes to; None before the first `choose`."""

    @property
    def is_dead(self) -> bool:
        """Whether the present shard is dead."""
        return self.shard is not None and self._is_dead(self.shard)

    def record_probe(self, shard: str, asked_s: float, *, answered: bool) -> None:
        """A question to a shard, asked at this time, was answered or was not."""
        health = self._of(shard)
        if health.answers is not answered:
            health.answers, health.since_s = answered, asked_s
        health.until_s = asked_s

    def to_probe(self, shards: Collection[str]) -> tuple[str, ...]:
        """Return whom of the shards to ask: the present one and those before it, or all if it is silent."""
        order = ranked(self._actor_id, shards)
        if self.shard is None or self._of(self.shard).answers is False:
            return order
        return order[: order.index(self.shard) + 1]

    def choose(self, shards: Collection[str]) -> str | None:
        """Return the shard to write to from now on, which `moved` confirms; None if there is none at all.

        The present shard must be among `shards`: it may be left only when it is dead, listed or not.
        """
        order = ranked(self._actor_id, shards)
        if not order:
            return None
        if self.shard is None:
            return next((shard for shard in order if not self._is_dead(shard)), order[0])
        if self.is_dead:
            return next((shard for shard in order if self._of(shard).answers), self.shard)
        before = order[: order.index(self.shard)]
        return next((shard for shard in before if self._of(shard).is_welcome), self.shard)

    def moved(self, shard: str) -> None:
        """The actor writes to this shard now."""
        if self.shard is not None and self.is_dead:
            left = self._of(self.shard)
            left.patience_s = min(2 * left.patience_s, _MOST_PATIENCE_S)
        self.shard = shard

    def _is_dead(self, shard: str) -> bool:
        return self._of(shard).is_dead(self._dead_s)

    def _of(self, shard: str) -> _Health:
        return self._health.setdefault(shard, _Health(self._patience_s))
