"""The log after a loss of power at any call: what was synced is there, and nothing that was never written."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.support.replay_streams import append, make_chunk, make_config, make_items, numbers_of, open_streams, steps_of
from tests.support.simulated_disk import PowerCutError, SimulatedDisk
from tests.unit.replay.logs import AtOnce, BlobBudget, Log, empty_replay, open_log, sample_all
from tidemill.errors import FatalError
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.compactor import Compactor
from tidemill.services.replay.log.frame import scan
from tidemill.services.replay.log.journal import Journal, describe_state
from tidemill.services.replay.log.open import open_replay_log
from tidemill.services.replay.log.writer import Command, LogWriter, Progress, Write

SCHEDULES = int(os.environ.get("TIDEMILL_POWER_CUTS", "60"))
"""Schedules of each kind; `make chaos` asks for thousands."""

_CONFIG = make_config("t", max_items=12)
_SEGMENT_BYTES = 3_000
_MEMORY_BYTES = 600
_LONGEST = 400
"""Calls after which the power fails at the latest; a schedule makes about as many."""

Steps = tuple[int, ...]


class Server:
    """State, log and the thread that writes it, as a server has them, with a history of what was promised."""

    def __init__(self, folder: Path, fsync_interval_s: float) -> None:
        self.recovered = open_replay_log(folder, BlobBudget(_MEMORY_BYTES), empty_replay)
        self.replay = self.recovered.replay
        self.progress = Progress()
        self._submitted = 0
        self._changed = threading.Condition()
        self.writer = LogWriter(self.recovered.folder, self.recovered.chain, fsync_interval_s, self._report)
        self.journal = Journal(
            self._submit, _SEGMENT_BYTES, self.recovered.position, partial(describe_state, self.replay)
        )
        self.journal.segment_sizes.update(self.recovered.segment_sizes)
        self.replay.attach(self.journal)
        self.inserted: dict[int, tuple[int, Steps]] = {}
        """The record of each item by its number, and the stream and steps it holds."""
        self.removed: dict[int, int] = {}
        """The record by which an item had left, by its number."""
        self.journal.begin()
        self.settle()

    def _submit(self, command: Command) -> None:
        if isinstance(command, Write):
            self._submitted = command.record.sequence
        self.writer.submit(command)

    def _report(self, progress: Progress) -> None:
        with self._changed:
            if self.progress.error is None:
                self.progress = progress
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until everything is written, or the power has failed.

        Raises:
            PowerCutError: It has.
        """

        def is_settled() -> bool:
            return self.progress.error is not None or self.progress.written >= self._submitted

        with self._changed:
            assert self._changed.wait_for(is_settled, 60.0), "the writer hangs"
        if self.progress.error is not None:
            raise PowerCutError("the writer has ended") from self.progress.error
        self.recovered.budget.written(self.progress.written)

    def note(self) -> None:
        """Note what the last change inserted and removed."""
        table = self.replay.find("t")
        live = set(table.items.numbers(table.items.live()).tolist())
        for number in self.inserted.keys() - live - self.removed.keys():
            self.removed[number] = self.replay.sequence

    def compact(self) -> None:
        """Delete and move what the cleaner would."""
        cold = BlobReader(BlobFiles(self.recovered.folder))
        try:
            asyncio.run(Compactor(self.replay, self.journal, AtOnce(), cold, _SEGMENT_BYTES, lambda: None).compact())
        finally:
            cold.close()

    def snapshot(self) -> None:
        """Write priorities and counters to disk."""
        Log(self.recovered, self.journal, _SEGMENT_BYTES).snapshot()

    def close(self) -> None:
        """End the thread and unlock the folder."""
        self.writer.close()
        self.recovered.folder.close()


def _work(server: Server, rng: random.Random) -> None:
    """Change the state at random until the power fails, or for so long."""
    server.replay.create_table(_CONFIG)
    session = open_streams(server.replay, "actor", 0, 1, ("t",), 4)
    server.settle()
    step = number = 0
    for _ in range(60):
        chosen = rng.random()
        if chosen < 0.8:
            items = [
                (0, offset, rng.randint(1, min(5, step + offset + 1))) for offset in range(4) if rng.random() < 0.7
            ]
            append(server.replay, session, [make_chunk(0, 0, step, 4)], [make_items(0, items)] if items else [])
            for _, offset, length in items:
                last = step + offset
                server.inserted[number] = (server.replay.sequence, (0, *range(last - length + 1, last + 1)))
                number += 1
            step += 4
        elif chosen < 0.9:
            server.compact()
        else:
            server.settle()  # as a snapshot is taken of what is written
            server.snapshot()
        server.note()
        if rng.random() < 0.7:  # or the next record is written together with this one
            server.settle()


def _check(server: Server, synced: int, again: Log) -> None:
    """Hold what came back against what was promised: records up to `synced` were on the disk."""
    table = again.replay.find("t") if again.replay.tables else None
    found = set(table.items.numbers(table.items.live()).tolist()) if table else set()
    promised = {number for number, (sequence, _) in server.inserted.items() if sequence <= synced}
    lost = promised - found - server.removed.keys()
    assert not lost, f"items {sorted(lost)} were synced and are lost"
    invented = found - server.inserted.keys()
    assert not invented, f"items {sorted(invented)} were never written"
    risen = {number for number in found if server.removed.get(number, synced + 1) <= synced}
    assert not risen, f"items {sorted(risen)} had left before the sync and are back"
    if table and found:
        batch = sample_all(again, table)
        numbers = numbers_of(table, batch.keys)
        for number, steps in zip(numbers, steps_of(batch), strict=True):
            assert steps == server.inserted[number][1], f"item {number} holds other steps than were written"


@pytest.mark.parametrize("has_header", [False, True], ids=["without the record", "with its header"])
def test_hole_in_copies_that_were_not_synced_costs_nothing_that_was(tmp_path: Path, has_header: bool) -> None:
    """Of records on their way the disk may have a later one's copy alone: the log is cut before it, not distrusted."""
    server = Server(tmp_path / "log", 1e6)
    server.replay.create_table(_CONFIG)
    session = open_streams(server.replay, "actor", 0, 1, ("t",), 4)
    items = server.replay.find("t").items
    before = list[int]()

    def store(step: int) -> None:
        append(server.replay, session, [make_chunk(0, 0, step, 4)], [make_items(0, [(0, 3, 1)])])
        server.settle()

    steps = itertools.count(0, 4)
    while server.journal.segment < 5:
        before = sorted(items.numbers(items.live()).tolist())
        store(next(steps))
    for _ in range(2):
        store(next(steps))
    synced, folder, mark = server.progress.synced, server.recovered.folder, server.recovered.chain.mark
    server.close()
    assert (len(before), server.journal.segment) == (_CONFIG.max_items, 5)
    log, copies = folder.segment(5), folder.copies(5)
    records = log.read_bytes()
    head, first = scan(memoryview(records), mark).frames[:2]
    assert synced == head.sequence - 1
    log.write_bytes(records[: first.body] + bytes(first.end - first.body) if has_header else records[: head.end])
    written = copies.read_bytes()
    lost = scan(memoryview(written), mark).frames[1]
    assert lost.sequence == first.sequence
    copies.write_bytes(written[: lost.start] + bytes(lost.end - lost.start) + written[lost.end :])
    for _ in range(2):
        again = open_log(tmp_path / "log", _SEGMENT_BYTES, _MEMORY_BYTES)
        found = again.replay.find("t").items
        assert sorted(found.numbers(found.live()).tolist()) == before
        again.crash()


@pytest.mark.parametrize("ack", ["write", "fsync"])
def test_power_cut_at_any_call_loses_nothing_synced(tmp_path: Path, ack: str) -> None:
    """Whatever the disk made of the rest: a server starts on it, with everything synced and nothing invented.

    With `ack: fsync` every record is synced before it is acknowledged: nothing acknowledged is lost. With `write` a
    sync is rare here, and so many records are on their way: the disk may have any of them without those before.
    """
    checked = promised = 0
    for seed in range(SCHEDULES):
        folder = tmp_path / f"{seed}"
        rng = random.Random(f"{ack} {seed}")
        disk = SimulatedDisk(folder, rng.randint(1, _LONGEST))
        server = None
        with disk:
            try:
                server = Server(folder, 0.0 if ack == "fsync" else 1e6)
                _work(server, rng)
            except PowerCutError:
                pass
            except FatalError as error:
                if not isinstance(error.__cause__, PowerCutError):  # it was cut when the folder was made
                    raise
            disk.cut()
            synced = server.progress.synced if server else 0
            chance = random.Random(f"{ack} {seed} disk")  # its own: threads decide how many numbers the work has drawn
            disk.after_power_cut(tmp_path / f"{seed}-after", chance)
            if server is not None:
                server.close()
        if server is None:
            shutil.rmtree(folder, ignore_errors=True)  # which may not have been made
            continue
        checked, promised = checked + 1, promised + bool(synced)
        for start in range(2):
            again = open_log(tmp_path / f"{seed}-after", _SEGMENT_BYTES, _MEMORY_BYTES)
            try:
                _check(server, synced, again)
            except AssertionError as error:
                raise AssertionError(f"{ack} schedule {seed}, start {start}: {error}") from error
            finally:
                again.crash()
        for left in (folder, tmp_path / f"{seed}-after"):
            shutil.rmtree(left)
    assert checked > SCHEDULES / 2
    assert promised > 0


def test_power_cut_after_a_restart_keeps_what_the_killed_process_left_to_sync(tmp_path: Path) -> None:
    """A server acknowledges what it found, so the disk must have it first, without what was torn behind it."""
    folder = tmp_path / "disk"
    with SimulatedDisk(folder, 10_000) as disk:
        killed = Server(folder, 1e6)
        killed.replay.create_table(_CONFIG)
        session = open_streams(killed.replay, "actor", 0, 1, ("t",), 4)
        for step in range(0, 12, 4):
            append(killed.replay, session, [make_chunk(0, 0, step, 4)], [make_items(0, [(0, i, 1) for i in range(4)])])
        killed.settle()
        disk.cut()
        killed.close()
        disk.restart(10_000)
        restarted = Server(folder, 0.0)
        disk.cut()
        for seed in range(20):
            disk.after_power_cut(tmp_path / f"{seed}", random.Random(seed))
        restarted.close()
    for seed in range(20):
        again = open_log(tmp_path / f"{seed}", _SEGMENT_BYTES, _MEMORY_BYTES)
        assert again.replay.find("t").size == 12
        assert not again.recovered.corruption.missing_records
        again.crash()


def test_disk_that_forgets_what_was_not_synced_is_noticed(tmp_path: Path) -> None:
    """The simulation keeps what was synced and may drop the rest, names included."""
    folder = tmp_path / "disk"
    folder.mkdir()
    outcomes = set()
    for seed in range(40):
        with SimulatedDisk(folder, 1_000) as disk:
            descriptor = os.open(folder / "kept", os.O_RDWR | os.O_CREAT)
            os.pwrite(descriptor, b"a" * 1024, 0)
            os.fsync(descriptor)
            directory = os.open(folder, os.O_RDONLY)
            os.fsync(directory)
            os.pwrite(descriptor, b"b" * 1024, 512)
            (folder / "new").write_bytes(b"c")
            disk.after_power_cut(tmp_path / f"after-{seed}", random.Random(seed))
            os.close(descriptor)
            os.close(directory)
        (folder / "new").unlink()
        found = (tmp_path / f"after-{seed}/kept").read_bytes()
        assert found[:512] == b"a" * 512
        outcomes.add((found, (tmp_path / f"after-{seed}/new").exists()))
    assert len(outcomes) > 4


def test_segment_that_never_reached_the_disk_costs_only_itself(tmp_path: Path) -> None:
    """Of a new segment a power cut may leave parts without one whole record: all that was synced before comes back."""
    log = open_log(tmp_path, _SEGMENT_BYTES, _MEMORY_BYTES)
    log.replay.create_table(_CONFIG)
    session = open_streams(log.replay, "actor", 0, 1, ("t",), 4)
    table = log.replay.find("t")
    step, segment = 0, log.journal.segment
    while log.journal.segment < 4 or log.journal.segment == segment:
        segment = log.journal.segment
        before = sorted(table.items.numbers(table.items.live()).tolist())
        items = [(0, offset, 1) for offset in range(4)]
        append(log.replay, session, [make_chunk(0, 0, step, 4)], [make_items(0, items)])
        step += 4
    assert len(before) == _CONFIG.max_items  # so that every record removes items
    written = log.files[-1].read_bytes()
    first, second = scan(memoryview(written), log.recovered.chain.mark).frames[:2]
    log.files[-1].write_bytes(bytes(512) + written[512 : second.start + 90])
    log.copies[-1].write_bytes(b"")
    assert first.start < 512 < second.start
    log.crash()
    again = open_log(tmp_path, _SEGMENT_BYTES, _MEMORY_BYTES)
    found = again.replay.find("t").items
    assert sorted(found.numbers(found.live()).tolist()) == before
    assert again.recovered.corruption.is_any  # bytes that are not ours are named, and set aside
    again.crash()
