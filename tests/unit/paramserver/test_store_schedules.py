"""The version store after kills, power cuts and full disks at any call: what was acknowledged is there."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.publishing import OpenStore, publish, read
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.paramserver.store_schedule import Schedule
from tidemill.errors import ResourceExhausted

SCHEDULES = int(os.environ.get("TIDEMILL_POWER_CUTS", "100"))
"""How many; the variable lengthens the simulation of replay's log, too."""


def test_acknowledged_changes_outlive_any_schedule_of_faults(tmp_path: Path) -> None:
    """Versions and tags are back with their bytes, numbers and fencing tokens only grow, `latest` is the newest."""
    faults = Counter[str]()
    for seed in range(SCHEDULES):
        schedule = Schedule(seed, tmp_path / f"{seed}")
        try:
            schedule.run()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        faults += schedule.faults
        shutil.rmtree(tmp_path / f"{seed}")
    assert all(faults[kind] for kind in ("kill", "power cut", "full disk", "full disk at the start")), faults


def _room_for(calls: int) -> Callable[[], bool]:
    """Return a disk that refuses, for want of room, all calls but the first ones."""
    left = iter([True] * calls)
    return lambda: next(left, False)


def test_store_of_a_new_folder_outlives_a_power_cut(tmp_path: Path, open_store: OpenStore) -> None:
    """The folders above it, which it made, are on the disk before anything is acknowledged."""
    (tmp_path / "disk").mkdir()
    with SimulatedDisk(tmp_path / "disk", 1000) as disk:
        store = open_store(tmp_path / "disk" / "run" / "params")
        publish(store, b"1")
        for seed in range(10):
            disk.after_power_cut(tmp_path / f"after-{seed}", random.Random(seed))
    for seed in range(10):
        assert read(open_store(tmp_path / f"after-{seed}" / "run" / "params"), 1) == b"1"


def test_version_that_a_killed_server_left_is_on_disk_before_it_is_served(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """What the next process shows to clients outlives a power cut, though no process acknowledged it."""
    root = tmp_path / "disk"
    with SimulatedDisk(root, 1000) as disk:
        store = open_store(root)
        publish(store, b"1")
        disk.fill(_room_for(4))  # both copies have their names, and the disk is not known to have them
        with pytest.raises(ResourceExhausted):
            store.set_tag("best", 1)
        disk.fill(lambda: True)
        store.close()
        assert open_store(root).catalog.tags == {"best": 1}
        for seed in range(10):
            disk.after_power_cut(tmp_path / f"after-{seed}", random.Random(seed))
    for seed in range(10):
        assert open_store(tmp_path / f"after-{seed}").catalog.tags == {"best": 1}


def test_tag_that_was_refused_costs_no_version(tmp_path: Path, open_store: OpenStore) -> None:
    """A refused move of a tag may be on the disk: the tag as it was is written again before versions are removed."""
    root = tmp_path / "disk"
    with SimulatedDisk(root, 1000) as disk:
        store = open_store(root, keep_versions=1)
        publish(store, b"1")
        store.set_tag("best", 1)
        publish(store, b"2")
        disk.fill(_room_for(4))  # both copies have their names, and the disk is not known to have them
        with pytest.raises(ResourceExhausted):
            store.set_tag("best", 2)
        disk.fill(lambda: True)
        publish(store, b"3")  # removes version 2
        store.close()
        again = open_store(root, keep_versions=1)
    assert again.catalog.tags == {"best": 1}
    assert read(again, 1) == b"1"


def test_full_disk_at_the_start_makes_no_version_corrupt(tmp_path: Path, open_store: OpenStore) -> None:
    """A missing copy of a description cannot be restored: the version is served, and the next start tries again."""
    root = tmp_path / "disk"
    with SimulatedDisk(root, 1000) as disk:
        store = open_store(root)
        publish(store, b"1")
        store.close()
        (root / "0000000001.copy.json").unlink()
        disk.fill(_room_for(2))  # the names above the folder and in it
        store = open_store(root)
        assert (read(store, 1), store.corrupt_versions) == (b"1", 0)
        store.close()
        disk.fill(lambda: True)
        store = open_store(root)
        assert (root / "0000000001.copy.json").exists()


def test_removed_version_of_which_names_come_back_is_no_loss(tmp_path: Path, open_store: OpenStore) -> None:
    """After a power cut the disk may have a name of a version that was removed: it is removed again, not set aside."""
    store = open_store(tmp_path, keep_versions=1)
    publish(store, b"1")
    description = (tmp_path / "0000000001.json").read_bytes()
    publish(store, b"2")
    store.close()
    (tmp_path / "0000000001.json").write_bytes(description)
    again = open_store(tmp_path, keep_versions=1)
    assert (set(again.catalog.versions), again.corrupt_versions) == ({2}, 0)
    assert not (tmp_path / "damaged").exists()
    assert not (tmp_path / "0000000001.json").exists()
