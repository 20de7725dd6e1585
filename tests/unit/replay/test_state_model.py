"""The whole state against a naive model, through random appends, samples, updates, deletions and changes of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.replay_streams import (
    append,
    held_chunks,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    numbers_of,
    open_streams,
    sample_from,
    steps_of,
)
from tidemill.replay.batch import SampledBatch
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableUpdate
from tidemill.services.replay.chunks.store import NONE
from tidemill.services.replay.state.append import AppendSession
from tidemill.services.replay.state.replay_state import ReplayState
from tidemill.services.replay.tables.table import Table

TABLES = ("uniform", "ranked")
MAX_ITEMS = {"uniform": 12, "ranked": 25}
MAX_STEPS = {"uniform": 9, "ranked": 3}
CONFIGS = (
    make_config("uniform", max_items=MAX_ITEMS["uniform"], max_item_steps=MAX_STEPS["uniform"]),
    make_config(
        "ranked",
        SelectorConfig(SelectorKind.PRIORITIZED, 1.0),
        max_items=MAX_ITEMS["ranked"],
        max_item_steps=MAX_STEPS["ranked"],
    ),
)


@dataclass
class ModelItem:
    """An item as the model remembers it; its number is the upper half of its key."""

    number: int
    stream: int
    first: int
    length: int
    priority: float
    initial_priority: float

    @property
    def steps(self) -> tuple[int, ...]:
        """The stream and every step."""
        return (self.stream, *range(self.first, self.first + self.length))


@dataclass
class ModelActor:
    """The open streams of one actor."""

    session: AppendSession
    actor_id: str
    names: list[int]  # number of each stream in the test's columns
    next_steps: list[int]
    ended: list[bool]
    chunk_length: int


class ReplayMachine(RuleBasedStateMachine):
    """Two tables with FIFO removal over shared chunks."""

    def __init__(self) -> None:
        """Start with two tables and no actor."""
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("tidemill.services.replay.state.replay_state._SLOTS_AT_ONCE", 4)
        self.replay = self.make_state()
        self.items: dict[str, list[ModelItem]] = {name: [] for name in TABLES}
        self.actors: dict[str, ModelActor] = {}
        self.inserted = dict.fromkeys(TABLES, 0)
        self.max_items, self.exponent = dict(MAX_ITEMS), 1.0
        self.writers: dict[int, str] = {}  # of each stream
        self.streams = 0
        self.env_steps = 0
        self.counted = dict.fromkeys(TABLES, 0)  # of these, since each table was reset

    def make_state(self) -> ReplayState:
        """Return a state with the tables."""
        return make_replay(*CONFIGS)

    def sample_all(self, table: Table) -> SampledBatch:
        """Draw every item of a table once."""
        return sample_from(table, table.size, without_replacement=True)

    @initialize()
    def first_actor(self) -> None:
        """Begin with one actor."""
        self.open("first", 2, 4)

    @rule(actor_id=st.sampled_from(["first", "second"]), envs=st.integers(1, 3), chunk_length=st.integers(1, 5))
    def open(self, actor_id: str, envs: int, chunk_length: int) -> None:
        """Open a new epoch; the old one of the same actor lets go of its tail."""
        session = open_streams(self.replay, actor_id, 0, envs, TABLES, chunk_length)
        names = list(range(self.streams, self.streams + envs))
        self.writers |= dict.fromkeys(names, actor_id)
        self.streams += envs
        self.actors[actor_id] = ModelActor(session, actor_id, names, [0] * envs, [False] * envs, chunk_length)

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """Append a message of a few chunks with items for one table or both."""
        actor = self.actors[data.draw(st.sampled_from(sorted(self.actors)))]
        chunks, places = [], []
        for _ in range(data.draw(st.integers(0, 4))):
            env_index = data.draw(st.integers(0, len(actor.names) - 1))
            if actor.ended[env_index]:
                continue
            steps = data.draw(st.sampled_from([actor.chunk_length, actor.chunk_length, 1]))
            first = actor.next_steps[env_index]
            chunks.append(make_chunk(actor.names[env_index], env_index, first, steps))
            places.append((actor.names[env_index], first, steps))
            actor.next_steps[env_index] += steps
            actor.ended[env_index] = steps < actor.chunk_length
            self.env_steps += steps
            self.counted = {name: count + steps for name, count in self.counted.items()}
        batches = []
        for index, name in enumerate(TABLES):
            picked, priorities = [], []
            for _ in range(data.draw(st.integers(0, 5)) if chunks else 0):
                chunk_index = data.draw(st.integers(0, len(chunks) - 1))
                stream, first, steps = places[chunk_index]
                offset = data.draw(st.integers(0, steps - 1))
                length = data.draw(st.integers(1, min(MAX_STEPS[name], first + offset + 1)))
                priority = data.draw(st.sampled_from([0.5, 1.0, 3.0]))
                picked.append((chunk_index, offset, length))
                priorities.append(priority)
                number = self.inserted[name]
                self.inserted[name] += 1
                self.items[name].append(
                    ModelItem(number, stream, first + offset - length + 1, length, priority, priority)
                )
            if picked:
                batches.append(make_items(index, picked, priorities))
            self.items[name] = self.items[name][-self.max_items[name] :]
        append(self.replay, actor.session, chunks, batches)

    @precondition(lambda self: any(self.items.values()))
    @rule(data=st.data(), change=st.sampled_from(["update", "delete"]))
    def update_or_delete(self, data: st.DataObject, change: str) -> None:
        """Change the priorities of some items, or delete them, by the keys a sample gave."""
        name = data.draw(st.sampled_from([name for name in TABLES if self.items[name]]))
        table, model = self.replay.find(name), self.items[name]
        sample = self.sample_all(table)
        indices = data.draw(st.lists(st.integers(0, len(model) - 1), unique=True, max_size=5))
        unknown = np.array([0, 2**64 - 1], dtype=np.uint64)
        keys = np.concatenate((sample.keys[indices], unknown))
        touched = set(numbers_of(table, sample.keys[indices]))
        priority = data.draw(st.sampled_from([0.25, 2.0]))
        if change == "update":
            assert table.update_priorities(keys, np.full(len(keys), priority)) == len(indices)
        else:
            assert self.replay.delete(table, keys) == len(indices)
        if change == "update":
            for item in model:
                item.priority = priority if item.number in touched else item.priority
        else:
            self.items[name] = [item for item in model if item.number not in touched]

    @rule(name=st.sampled_from(TABLES), max_items=st.integers(1, 40))
    def resize(self, name: str, max_items: int) -> None:
        """Change the capacity: the oldest items leave, and clients that declare the table as before find it so."""
        for _ in self.shrink(name, max_items):
            pass
        self.replay.update_table(self.replay.find(name), TableUpdate(max_items=max_items))
        self.max_items[name] = max_items
        self.items[name] = self.items[name][-max_items:]
        assert [self.replay.create_table(config) for config in CONFIGS] == [False] * len(CONFIGS)

    @rule(data=st.data(), name=st.sampled_from(TABLES), max_items=st.integers(1, 40))
    def resize_in_use(self, data: st.DataObject, name: str, max_items: int) -> None:
        """Change the capacity part by part, with a message after each."""
        for _ in self.shrink(name, max_items):
            self.tables_hold_what_the_model_holds()
            self.append(data)
        self.resize(name, max_items)

    def shrink(self, name: str, max_items: int) -> Iterator[None]:
        """Let a table shrink part by part."""
        table = self.replay.find(name)
        for _ in self.replay.shrink(table, replace(table.config, max_items=max_items)):
            self.max_items[name] = min(table.config.max_items, table.items.capacity)
            self.items[name] = self.items[name][-table.size :]
            yield

    @rule(exponent=st.sampled_from([0.5, 1.0, 2.0]))
    def reweigh(self, exponent: float) -> None:
        """Change the priority exponent."""
        self.replay.update_table(self.replay.find("ranked"), TableUpdate(priority_exponent=exponent))
        self.exponent = exponent

    @rule(data=st.data(), exponent=st.sampled_from([0.5, 1.0, 2.0]))
    def reweigh_in_use(self, data: st.DataObject, exponent: float) -> None:
        """Change the priority exponent part by part, with a message after each."""
        table = self.replay.find("ranked")
        for _ in self.replay.shrink(table, TableUpdate(priority_exponent=exponent).applied_to(table.config)):
            self.tables_hold_what_the_model_holds()
            self.append(data)
        self.reweigh(exponent)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), name=st.sampled_from(TABLES), min_age=st.integers(0, 6))
    def delete_matching(self, data: st.DataObject, name: str, min_age: int) -> None:
        """Delete items of one writer, whatever epoch they are of, or old ones, or its old ones."""
        writer = data.draw(st.sampled_from(["", *sorted(self.actors)] if min_age else sorted(self.actors)))
        stays = [
            item
            for item in self.items[name]
            if (writer and self.writers[item.stream] != writer) or self.inserted[name] - 1 - item.number < min_age
        ]
        deleted = sum(self.replay.delete_matching(self.replay.find(name), writer, None, min_age))
        assert deleted == len(self.items[name]) - len(stays)
        self.items[name] = stays

    @rule(name=st.sampled_from(TABLES))
    def reset(self, name: str) -> None:
        """Remove every item of a table."""
        assert self.replay.reset(self.replay.find(name)) == len(self.items[name])
        self.items[name], self.counted[name] = [], 0

    @invariant()
    def tables_hold_what_the_model_holds(self) -> None:
        """Every item comes out once without replacement, with its own steps and probability."""
        for name in TABLES:
            table, model = self.replay.find(name), self.items[name]
            assert table.size == len(model)
            if not model:
                continue
            sample = self.sample_all(table)
            by_number = {item.number: item for item in model}
            items = [by_number[number] for number in numbers_of(table, sample.keys)]
            assert len({item.number for item in items}) == len(model)
            assert steps_of(sample) == [item.steps for item in items]
            weights = np.array([item.priority**self.exponent if name == "ranked" else 1.0 for item in items])
            np.testing.assert_allclose(sample.probabilities, weights / weights.sum())

    @invariant()
    def chunks_held_are_those_needed(self) -> None:
        """The store holds exactly the chunks that items or the streams' tails need, and counts their bytes."""
        store = self.replay.find("ranked").store
        needed = set()
        for name in TABLES:
            needed |= set(self.replay.find(name).chunks().tolist())
        for actor in self.actors.values():
            for stream in actor.session.epoch.streams:
                slot, last = stream.tail, NONE
                while slot != NONE:
                    needed.add(slot)
                    slot, last = store.next_slot(slot), slot
                assert last == stream.last
                reach = stream.next_step - (max(MAX_STEPS.values()) - 1)
                assert stream.ended or stream.tail == NONE or stream.tail_step <= max(reach, 0)
        held = held_chunks(self.replay, TABLES)
        assert held == needed
        assert self.replay.chunks == len(held)
        assert self.replay.chunk_bytes == store.bytes_of(np.array(sorted(held), dtype=np.int64))
        assert self.replay.env_steps == self.env_steps
        assert {name: self.replay.find(name).counters.env_steps for name in TABLES} == self.counted

    def teardown(self) -> None:
        """Let tables shrink in parts of the usual size."""
        self.patch.undo()


ReplayMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestReplayAgainstTheModel = ReplayMachine.TestCase
