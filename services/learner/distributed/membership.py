"""Lets the ranks find out which of them were started to train together.

torchrun may keep one store for as long as the agent that hosts it runs, and every agent counts its restarts for
itself, so neither says which incarnation of the group this is. Rank 0 therefore announces an incarnation under a new
name, every other rank answers with its own name, and once all have answered rank 0 writes down the members. Whoever is
missing from that list was started later, in place of one that is gone, and waits for the next incarnation.
"""

from __future__ import annotations

import uuid

from torch.distributed.distributed_c10d import Store

_NEWEST = "tidemill/incarnation"  # the newest one


class GroupMembership:
    """One rank's part in it; `poll` until it returns an incarnation."""

    def __init__(self, store: Store, index: int, size: int) -> None:
        """Take what all ranks reach, which may hold traces of earlier incarnations; nothing is written yet.

        Args:
            store: The key-value store of the ranks.
            index: Number of this rank.
            size: How many there are.
        """
        self._store, self._index, self._size = store, index, size
        self._own = uuid.uuid4().hex
        self._answered = ""

    def poll(self) -> str | None:
        """Write what is due and return the incarnation that all ranks are in, or None as yet; never waits.

        Its name is the same for all of them, and no earlier one had it.

        Raises:
            RuntimeError: The store is gone.
        """
        return self._announce() if self._index == 0 else self._answer()

    def missing(self) -> str:
        """Return a description of the ranks that are missing."""
        if self._index != 0:
            return "rank 0 has not called all ranks together"
        ranks = [rank for rank in self._others if not self._store.check([_answer_of(rank, self._own)])]
        return f"no answer of rank {', '.join(map(str, ranks))}"

    @property
    def _others(self) -> range:
        return range(1, self._size)

    def _announce(self) -> str | None:
        self._store.set(_NEWEST, self._own)
        keys = [_answer_of(rank, self._own) for rank in self._others]
        if not self._store.check(keys):
            return None
        self._store.set(_members_of(self._own), " ".join(name.decode() for name in self._store.multi_get(keys)))
        return self._own

    def _answer(self) -> str | None:
        incarnation = self._get(_NEWEST)
        if incarnation != self._answered:
            self._store.set(_answer_of(self._index, incarnation), self._own)
            self._answered = incarnation
        return incarnation if self._own in self._get(_members_of(incarnation)).split() else None

    def _get(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _answer_of(rank: int, incarnation: str) -> str:
    return f"tidemill/incarnation/{incarnation}/rank-{rank}"


def _members_of(incarnation: str) -> str:
    return f"tidemill/incarnation/{incarnation}/members"
