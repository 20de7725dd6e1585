"""Seeded schedules of changes, full disks, kills and power cuts on a version store, held against a model of it."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.publishing import publish, read, small_store
from tests.support.simulated_disk import PowerCutError, SimulatedDisk
from tidemill.errors import FatalError, ResourceExhausted, TidemillError
from tidemill.params.version import LATEST, Precision
from tidemill.services.paramserver.version_store import VersionStore

_LIVES = 4
"""Processes of a schedule, one after the other on one disk."""

_CHANGES = 12
"""Changes of a process."""

_LONGEST = 200
"""Calls of the disk after which a process ends at the latest; its changes make about as many."""

_TAGS = ("best", "first")

Blobs = tuple[bytes, bytes]
"""The full encoding of a version and its half one, empty for none."""


@dataclass
class Model:
    """What clients were told by any process so far, and may rely on.

    Attributes:
        keep_versions: Versions kept besides the tagged ones.
        live: The kept versions by number.
        tags: Where tags point.
        fencing_token: Newest token handed out.
        high_water: Greatest number of a version.
        begun_versions: Publishes that were cut short or refused by a full disk since the last start, by the number they
            would have had; each may turn out to be there after the next start, or not.
        begun_tags: What the tags may turn out to be besides `tags`, likewise.
        never_acknowledged: Numbers of publishes that were begun, and of which no publisher heard that they are stored.
        begun_token: The greatest token that may turn out to be taken, likewise.
    """

    keep_versions: int
    live: dict[int, Blobs] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    fencing_token: int = 0
    high_water: int = 0
    begun_versions: dict[int, list[Blobs]] = field(default_factory=dict)
    begun_tags: list[dict[str, int]] = field(default_factory=list)
    never_acknowledged: set[int] = field(default_factory=set)
    begun_token: int = 0

    def begin(self, number: int, blobs: Blobs) -> None:
        """Note a publish that may come to nothing."""
        self.begun_versions.setdefault(number, []).append(blobs)
        self.never_acknowledged.add(number)

    def published(self, number: int, blobs: Blobs) -> None:
        """Note an acknowledged version: its number was never given to any other."""
        assert number > self.high_water, f"version {number} was given after {self.high_water}"
        self.live[number], self.high_water = blobs, number
        self.never_acknowledged.discard(number)
        self._prune()

    def tagged(self, tag: str, number: int) -> None:
        """Note where a tag points by acknowledgement."""
        self.tags = self.tags | {tag: number}
        self.begun_tags = []
        self._prune()

    def acquired(self, token: int) -> None:
        """Note a fencing token: it is greater than every one before."""
        assert token > self.fencing_token, f"fencing token {token} was handed out after {self.fencing_token}"
        self.fencing_token = token

    def check(self, store: VersionStore) -> None:
        """Hold a store that was just opened against what was promised, and rely on what it says from now on."""
        catalog = store.catalog
        greatest = max(self.fencing_token, self.begun_token)
        assert self.fencing_token <= catalog.fencing_token <= greatest, f"fencing token is {catalog.fencing_token}"
        assert dict(catalog.tags) in (self.tags, *self.begun_tags), f"tags are {dict(catalog.tags)}"
        self.tags, self.fencing_token = dict(catalog.tags), catalog.fencing_token
        for number in sorted(catalog.versions.keys() - self.live.keys()):
            assert number in self.begun_versions, f"version {number} was never published, or had been removed"
            found = _blobs(store, number)
            assert found in self.begun_versions[number], f"version {number} holds what nobody published"
            self.published(number, found)
            self.never_acknowledged.add(number)
        self._prune()
        self.check_served(store)
        for number, blobs in self.live.items():
            assert _blobs(store, number) == blobs, f"version {number} holds other bytes than were published"
        self.begun_versions, self.begun_tags, self.begun_token = {}, [], 0

    def check_served(self, store: VersionStore) -> None:
        """Hold what a store says that it serves against what is kept."""
        catalog = store.catalog
        assert set(catalog.versions) == set(self.live), f"versions are {set(catalog.versions)}, kept: {set(self.live)}"
        assert catalog.high_water >= self.high_water, f"numbers went back to {catalog.high_water}"
        newest = {LATEST: max(self.live)} if self.live else {}
        assert catalog.all_tags == self.tags | newest

    def _prune(self) -> None:
        kept = {*sorted(self.live)[-self.keep_versions :], *self.tags.values()}
        self.live = {number: blobs for number, blobs in self.live.items() if number in kept}


class Schedule:
    """One seed's history: processes that change the store until a fault, each on what the last one left."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Begin with an empty disk in a folder of the schedule's own."""
        self.faults = Counter[str]()
        """How many faults of each kind there were."""
        self._rng = random.Random(seed)
        self._model = Model(self._rng.randint(1, 4))
        self._folder, self._contents = folder, 0

    def run(self) -> None:
        """Let one process follow the other.

        What was never acknowledged may be called corrupt: the disk may have its number, and have lost the rest.

        Raises:
            AssertionError: A promise is broken.
        """
        root = self._folder / "0"
        root.mkdir(parents=True)
        disk = SimulatedDisk(root, 0)
        for life in range(1, _LIVES + 1):
            with disk:
                disk.restart(self._rng.randint(1, _LONGEST))
                self._live(root, disk)
                is_cut = self._rng.random() < 0.5
                self.faults["power cut" if is_cut else "kill"] += 1
                if is_cut:
                    root = self._folder / f"{life}"
                    disk.after_power_cut(root, self._rng)
            if is_cut:
                disk = SimulatedDisk(root, 0)
        with closing(self._open(root)) as store:
            self._check(store)

    def _live(self, root: Path, disk: SimulatedDisk) -> None:
        """Run one process until it is killed."""
        store = None
        try:
            if self._rng.random() < 0.2:
                self._fill(disk)
                try:
                    store = self._open(root)
                except (FatalError, ResourceExhausted):
                    self.faults["full disk at the start"] += 1
                disk.fill(lambda: True)
            store = store or self._open(root)
            self._check(store)
            for _ in range(_CHANGES):
                self._change(store, disk)
        except (TidemillError, PowerCutError):
            assert disk.is_cut, "a change was refused, and the disk was neither full nor gone"
        finally:
            disk.fill(lambda: True)
            disk.cut()
            if store is not None:
                store.close()

    def _open(self, root: Path) -> VersionStore:
        return small_store(root / "run" / "params", keep_versions=self._model.keep_versions)

    def _check(self, store: VersionStore) -> None:
        self._model.check(store)
        may_be = len(self._model.never_acknowledged)
        assert store.corrupt_versions <= may_be, f"{store.corrupt_versions} were called corrupt"

    def _change(self, store: VersionStore, disk: SimulatedDisk) -> None:
        is_full = self._rng.random() < 0.2
        if is_full:
            self._fill(disk)
        chosen = self._rng.random()
        try:
            if chosen < 0.6 or not self._model.live:
                self._publish(store)
            elif chosen < 0.85:
                self._tag(store)
            else:
                self._acquire(store)
        except ResourceExhausted:
            assert is_full, "a disk with room was called full"
            self.faults["full disk"] += 1
        disk.fill(lambda: True)
        self._model.check_served(store)

    def _publish(self, store: VersionStore) -> None:
        if not self._model.fencing_token:
            self._acquire(store)
        self._contents += 1
        full = f"full {self._contents} ".encode() * self._rng.choice((1, 80))
        blobs = full, f"half {self._contents}".encode() if self._rng.random() < 0.5 else b""
        self._model.begin(store.catalog.high_water + 1, blobs)
        self._model.published(publish(store, *blobs).version, blobs)

    def _tag(self, store: VersionStore) -> None:
        tag, number = self._rng.choice(_TAGS), self._rng.choice(list(self._model.live))
        self._model.begun_tags.append(self._model.tags | {tag: number})
        store.set_tag(tag, number)
        self._model.tagged(tag, number)

    def _acquire(self, store: VersionStore) -> None:
        self._model.begun_token = max(self._model.begun_token, store.catalog.fencing_token + 1)
        self._model.acquired(store.acquire_fencing_token().fencing_token)

    def _fill(self, disk: SimulatedDisk) -> None:
        """Let the disk be full from some call on, or nearly so."""
        left, chance = [self._rng.randint(0, 12)], self._rng.choice((0.0, 0.5))

        def has_room() -> bool:
            left[0] -= 1
            return left[0] >= 0 or self._rng.random() < chance

        disk.fill(has_room)


def _blobs(store: VersionStore, number: int) -> Blobs:
    """Return the content of a version, read as a client does."""
    encodings = store.catalog.find(number).encodings
    half = read(store, number, Precision.HALF) if len(encodings) > 1 else b""
    return read(store, number), half
