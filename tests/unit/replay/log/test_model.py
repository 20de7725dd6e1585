"""The state against the naive model, with a crash and a recovery from the log at any point."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.support.replay_streams import append, make_chunk, make_items, open_streams
from tests.unit.replay.logs import Log, open_log, sample_all
from tests.unit.replay.test_state_model import CONFIGS, TABLES, ReplayMachine
from tidemill.replay.batch import SampledBatch
from tidemill.services.replay.log.compactor import chunks_in, items_in
from tidemill.services.replay.log.frame import scan
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table


class LogMachine(ReplayMachine):
    """The same tables over a log of small segments, most of whose chunks are not in memory."""

    SEGMENT_BYTES = 3000
    MEMORY_BYTES = 600

    def make_state(self) -> ReplayState:
        """Begin a log."""
        self.saved: dict[tuple[str, int], float] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-log-"))
        self.log: Log = open_log(self.folder, self.SEGMENT_BYTES, self.MEMORY_BYTES)
        for config in CONFIGS:
            self.log.replay.create_table(config)
        return self.log.replay

    def sample_all(self, table: Table) -> SampledBatch:
        """Draw every item of a table once."""
        return sample_all(self.log, table)

    @rule()
    def snapshot(self) -> None:
        """Write priorities to disk."""
        self.log.snapshot()
        self.saved = self.priorities()

    @rule()
    def crash(self, torn: bool = False) -> None:
        """Kill the server and start it again: everything told is there, and actors resume their epochs."""
        self.log.crash()
        self.log = open_log(self.folder, self.SEGMENT_BYTES, self.MEMORY_BYTES)
        self.replay = self.log.replay
        assert not self.log.recovered.corruption.is_any
        assert self.log.recovered.dropped == 0
        assert torn or self.log.recovered.corruption.torn_bytes == 0
        for actor in self.actors.values():
            before = actor.session.epoch
            actor.session = open_streams(
                self.replay, actor.actor_id, before.number, len(actor.names), TABLES, actor.chunk_length
            )
            assert actor.session.epoch.number == before.number
            assert actor.session.epoch.next_steps() == actor.next_steps
            assert [stream.ended for stream in actor.session.epoch.streams] == actor.ended
        self.take_priorities()

    @rule(data=st.data())
    def crash_while_writing(self, data: st.DataObject) -> None:
        """Kill the server in the middle of a message's record: it is as if the message had never come."""
        actor = self.actors[data.draw(st.sampled_from(sorted(self.actors)))]
        env_index = data.draw(st.integers(0, len(actor.names) - 1))
        if actor.ended[env_index]:
            return
        chunk = make_chunk(actor.names[env_index], env_index, actor.next_steps[env_index], actor.chunk_length)
        items = [(0, offset, 1) for offset in range(actor.chunk_length)] * data.draw(st.integers(0, 6))
        append(self.replay, actor.session, [chunk], [make_items(0, items)])
        for path, is_begun in ((self.log.files[-1], True), (self.log.copies[-1], False)):  # copies are written last
            whole = path.read_bytes()
            last = scan(memoryview(whole), self.log.recovered.chain.mark).frames[-1]
            path.write_bytes(whole[: data.draw(st.integers(last.start, last.end - 1)) if is_begun else last.start])
        self.crash(torn=True)

    @rule(name=st.sampled_from(TABLES), max_items=st.integers(1, 40), parts=st.integers(1, 9))
    def crash_while_shrinking(self, name: str, max_items: int, parts: int) -> None:
        """Kill the server after some parts of a change of capacity: the table has the former one, and what is left."""
        former = self.replay.find(name).config.max_items
        for _ in itertools.islice(self.shrink(name, max_items), parts):
            pass
        self.max_items[name] = former
        self.crash()
        assert self.replay.find(name).config.max_items == former

    def shrink(self, name: str, max_items: int) -> Iterator[None]:
        """Let a table shrink part by part; the log has the priority that an item has when it moves."""
        before = self.slots(name)
        for part in super().shrink(name, max_items):
            slots = self.slots(name)
            for item in self.items[name]:
                if before[item.number] != slots[item.number]:
                    self.saved[name, item.number] = item.priority
            yield part
            before = self.slots(name)

    def slots(self, name: str) -> dict[int, int]:
        """Return the slot of each item by its number."""
        items = self.replay.find(name).items
        return dict(zip(items.numbers(items.live()).tolist(), items.live().tolist(), strict=True))

    def priorities(self) -> dict[tuple[str, int], float]:
        """Return the priority the model has of every item."""
        return {(name, item.number): item.priority for name in TABLES for item in self.items[name]}

    def take_priorities(self) -> None:
        """Let the model have the recovered priorities: each is the newest, or the last that was saved."""
        for name in TABLES:
            items = self.replay.find(name).items
            slots = items.live()
            found = dict(zip(items.numbers(slots).tolist(), items.priorities[slots].tolist(), strict=True))
            for item in self.items[name]:
                saved = self.saved.get((name, item.number), item.initial_priority)
                assert found[item.number] in (saved, item.priority)
                item.priority = found[item.number]

    @rule()
    def clean(self) -> None:
        """Delete what nobody needs and move what little is left of old segments."""
        self.log.compact()
        total = sum(path.stat().st_size for path in (*self.log.files, *self.log.copies))
        assert total == self.log.journal.size_bytes

    @invariant()
    def counts_of_segments_are_what_a_search_finds(self) -> None:
        """By them the compactor knows whether a segment is needed."""
        for number in self.log.journal.segment_sizes:
            for store in self.replay.stores:
                found = np.count_nonzero(logged(store).segments[store.held()] == number)
                assert logged(store).by_segment.count(number) == found == len(chunks_in(store, number))
            for table in self.replay.tables:
                found = np.count_nonzero(table.items.segments[table.items.held()] == number)
                assert table.items.by_segment.count(number) == found == len(items_in(table, number))

    def teardown(self) -> None:
        """Remove the files."""
        super().teardown()
        self.log.crash()
        shutil.rmtree(self.folder)


LogMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestReplayWithALogAgainstTheModel = LogMachine.TestCase
