"""How the ranks find out that they were started to train together.

torchrun may keep one store for as long as the agent that hosts it lives, and every agent counts its restarts for
itself, so neither says which life of the group this is. Rank 0 therefore opens a life under a name of its own, every
other rank answers with its own, and once all have answered rank 0 writes down who they are. Whoever is missing from
that list was started later, in place of one that is gone, and waits for the next life.
"""

from __future__ import annotations

import uuid

from torch.distributed.distributed_c10d import Store

_CALL = "tidemill/call"  # the newest life


class RollCall:
    """One rank's part in it; `poll` until it returns a life."""

    def __init__(self, store: Store, index: int, size: int) -> None:
        """Take what all ranks reach, which may hold traces of earlier lives; nothing is written yet.

        Args:
            store: The key-value store of the ranks.
            index: Number of this rank.
            size: How many there are.
        """
        self._store, self._index, self._size = store, index, size
        self._own = uuid.uuid4().hex
        self._answered = ""

    def poll(self) -> str | None:
        """Say what there is to say and return the life that all ranks are in, or None as yet; never waits.

        It is the same for all of them, and no life before had it.

        Raises:
            RuntimeError: The store is gone.
        """
        return self._call() if self._index == 0 else self._answer()

    def missing(self) -> str:
        """Return in words who has not come."""
        if self._index != 0:
            return "rank 0 has not called all ranks together"
        ranks = [rank for rank in self._others if not self._store.check([_answer_of(rank, self._own)])]
        return f"no answer of rank {', '.join(map(str, ranks))}"

    @property
    def _others(self) -> range:
        return range(1, self._size)

    def _call(self) -> str | None:
        self._store.set(_CALL, self._own)
        keys = [_answer_of(rank, self._own) for rank in self._others]
        if not self._store.check(keys):
            return None
        self._store.set(_members_of(self._own), " ".join(name.decode() for name in self._store.multi_get(keys)))
        return self._own

    def _answer(self) -> str | None:
        life = self._get(_CALL)
        if life != self._answered:
            self._store.set(_answer_of(self._index, life), self._own)
            self._answered = life
        return life if self._own in self._get(_members_of(life)).split() else None

    def _get(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _answer_of(rank: int, life: str) -> str:
    return f"tidemill/life/{life}/rank-{rank}"


def _members_of(life: str) -> str:
    return f"tidemill/life/{life}/members"
