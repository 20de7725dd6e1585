"""Passes over a table: every item once in random order, then all again in another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.replay.batch import EpochPlace
from tidemill.services.replay.tables.items import Items

_ROUNDS = 6
_LEAST_LOOK, _MOST_LOOK = 64, 2**16  # places that are looked at together


@dataclass(slots=True, eq=False)
class Epochs:
    """Draws the items of a table without replacement over an epoch.

    An item that is in the table throughout an epoch is drawn once in it; one that comes or leaves meanwhile, at most
    once. The order is a permutation of the table's slots that is computed where it is needed, so an epoch takes no
    memory, and its place is a few numbers from which another call continues.

    Attributes:
        place: Where the next draw begins.
    """

    place: EpochPlace

    def take(self, items: Items, count: int, inserts: int = 0) -> Ints:
        """Return the slots of the next items, at most `count`, fewer at the end of an epoch; there must be an item.

        `inserts` of the table since it was last emptied may have used slots beyond those that it knows of now: a
        restart forgets the empty ones behind its last item.
        """
        place, taken, found = self.place, 0, [_NO_SLOTS]
        look = count
        while taken < count:
            if place.slots > max(items.used, min(inserts, len(items.lengths))):  # of a table that was emptied since
                place = replace(place, slots=0, next=0)
            if place.next >= place.slots:
                if taken:
                    break
                number = (place.number + 1) % 2**64 if place.slots else place.number
                place = replace(place, number=number, slots=items.used, next=0)
            look = min(max(look, _LEAST_LOOK), _MOST_LOOK)
            end = min(place.next + look, place.slots)
            slots = _permuted(np.arange(place.next, end), place.slots, _keys(place))
            used = np.flatnonzero(items.lengths[slots])[: count - taken]
            found.append(slots[used])
            taken += len(used)
            place = replace(place, next=place.next + int(used[-1]) + 1 if taken == count else end)
            look *= 2
        self.place = place
        return np.concatenate(found)


def _keys(place: EpochPlace) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = np.random.SeedSequence([place.seed, place.number]).generate_state(_ROUNDS, np.uint64)  # type: ignore[assignment]
    return keys


def _permuted(places: Ints, size: int, keys: NDArray[np.uint64]) -> Ints:
    """Return the images of places [N] of 0 .. size - 1 in a permutation of these numbers that the keys choose.

    It is a Feistel network over a power of 4, walked until it comes back below `size` (Black & Rogaway, 2002, section
    3): a place outside goes through it again.
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> half, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        values[outside] = (left << half) | right
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers [N] whose every bit depends on every bit of the given ones (splitmix64, Steele et al., 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)
