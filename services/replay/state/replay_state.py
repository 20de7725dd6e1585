"""The whole state of a replay server: its tables, their chunk stores and the streams. Plain and synchronous."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Ints
from tidemill.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.replay.argument_types import check_range
from tidemill.replay.batch import StoredSteps
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.limits import MAX_ENV_COUNT
from tidemill.replay.table_config import TableConfig, TableUpdate
from tidemill.services.replay.chunks.blocks import BlockStore
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.state.append import (
    AppendPlan,
    AppendResult,
    AppendSession,
    BlockSizes,
    apply_append,
    plan_append,
)
from tidemill.services.replay.state.change_sink import TABLE_NUMBERS, ChangeSink, NewChunks
from tidemill.services.replay.state.memory import MemoryBudget, StoredMemory
from tidemill.services.replay.state.streams import Epoch, StreamRegistry, places_of
from tidemill.services.replay.tables.insertion_times import LOGGED_EVERY_S
from tidemill.services.replay.tables.table import Table
from tidemill.types import ColumnSpec, Signature, column_names

MAX_CHUNK_LENGTH = 1024
MAX_APPEND_TABLES = 16
_CHANGEABLE = ("max_items", "max_bytes", "rate_limiter", "max_times_sampled")
_SLOTS_AT_ONCE = 2**14  # between two of them others get their turn
_NAMED = 8  # actors that an error names at most
_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)
_ACTOR_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def _key_salt(store_id: int, number: int) -> int:
    """Return 31 random-looking bits that distinguish the keys of a table's items from those of other tables.

    The other may be of an earlier history, or one of the same name that was dropped.
    """
    return (store_id * 0x9E3779B97F4A7C15 + (number - 1) * 0xD1B54A32D192ED03 >> 33) & 0x7FFFFFFF


class ReplayState:
    """Tables and streams of one server."""

    def __init__(
        self,
        *,
        max_tables: int,
        max_streams: int,
        first_epoch: int,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.time,
        budget: MemoryBudget | None = None,
        make_blocks: Callable[[Signature, int], BlockStore] | None = None,
    ) -> None:
        """Create a server without tables.

        Args:
            max_tables: Most tables.
            max_streams: Most streams; see `StreamRegistry`.
            first_epoch: Number of the first epoch; see `StreamRegistry`. It names the store_id as well.
            rng: Source of all randomness.
            clock: Returns the Unix time in seconds; by it items are asked for that came in a range of time.
            budget: Memory for all that is stored; None means no limit.
            make_blocks: Returns the store of chunks' blocks for a signature and the number of a table with it; given
                if there is a log, which holds them too. None keeps them in memory only.
        """
        self._max_tables = max_tables
        self._rng, self._clock = rng, clock
        self.budget = budget or MemoryBudget(0)
        self._make_blocks = make_blocks
        self._durable = make_blocks is not None
        self._sink = ChangeSink()
        self._unconfirmed: set[str] = set()  # restored tables that no call has named yet
        self._tables: dict[str, Table] = {}
        self.next_table = 1
        self.dropped_names: dict[int, TableConfig] = {}  # by whose number the log still names a store's chunks
        self._stores: dict[Signature, ChunkStore] = {}
        self._store_numbers: dict[Signature, int] = {}  # of the table by which the log names each
        self.streams = StreamRegistry(first_epoch, max_streams)
        self.store_id = first_epoch
        self.env_steps = 0
        self.corrupt_chunks = 0
        self.memory = StoredMemory(self.budget, self._tables, self._stores, self.streams, durable=self._durable)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables in order of name."""
        return tuple(self._tables[name] for name in sorted(self._tables))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of all chunks as stored."""
        return sum(store.size_bytes for store in self._stores.values())

    @property
    def chunks(self) -> int:
        """Number of all chunks."""
        return sum(store.count for store in self._stores.values())

    def now_s(self) -> float:
        """Return the Unix time by which items come, in seconds."""
        return self._clock()

    @property
    def sequence(self) -> int:
        """Number of the newest change that was reported; 0 without a log."""
        return self._sink.sequence

    def attach(self, sink: ChangeSink) -> None:
        """Report every change from now on; the existing tables were restored from what the sink holds."""
        self._sink = sink
        self._unconfirmed = set(self._tables)
        for table in self._tables.values():
            sink.know_table(table)

    def create_table(self, config: TableConfig, *, redeclare: bool = False) -> bool:
        """Create a table; return False if it exists: with equal configuration, or one that may be changed to it.

        A call may change a table that was restored and not yet confirmed, or any with `redeclare`.

        Raises:
            AlreadyExists: the name is taken by a table with another configuration.
            ResourceExhausted: too many tables, or no memory for one so large.
        """
        existing = self._tables.get(config.name)
        if existing is None:
            self._sink.begin()
            table = self.add_table(config, self._free_number())
            table.times.note(self._clock(), 0)
            self._log_table(table)
            return True
        if values := self._new_values(existing, config, is_asked=redeclare):
            configs = replace(existing.config, **values), replace(existing.declared, **values)
            existing.former.clear()  # clients of before do not go with what is declared now
            self._reconfigure(existing, *configs, limiter_is_on=existing.limiter.is_on)
        self._unconfirmed.discard(config.name)
        return False

    def shrink(self, table: Table, config: TableConfig) -> Iterator[int]:
        """Do what takes long before a table takes a configuration: evict, move and weigh items.

        Yields how many moved after each part: others may act then. A restart meanwhile finds the former configuration.

        Raises:
            NotFound: The table was dropped after a part.
            ResourceExhausted: No memory for so many items; nothing was changed.
        """
        with _memory_for(config):
            table.check_memory(config)
        while True:
            self._sink.begin()
            moved = table.shrink(config, _SLOTS_AT_ONCE)
            if moved is None:
                return
            for _ in range(2 if len(moved) else int(table.has_removed)):  # a corrupt record must not cost what moved
                self._sink.log_changes(self.env_steps, None, [(table, moved)])
            yield len(moved)
            table.check_there()

    def redeclared(self, config: TableConfig, *, redeclare: bool = False) -> tuple[Table, TableConfig] | None:
        """Return the table that `create_table` would change, and its configuration then; None if it would change none.

        Raises:
            AlreadyExists: The name is taken by a table with another configuration.
        """
        table = self._tables.get(config.name)
        values = self._new_values(table, config, is_asked=redeclare) if table is not None else {}
        return (table, replace(table.config, **values)) if table is not None and values else None

    def update_table(self, table: Table, update: TableUpdate) -> None:
        """Change a table while it is in use: clients that create it as before find it so, see ADR 0038.

        Raises:
            InvalidArgument: a value is out of range, by itself or beside the others; nothing was changed.
            ResourceExhausted: no memory for so many items; nothing was changed.
        """
        config = update.applied_to(table.config)
        is_on = table.limiter.is_on if update.rate_limiter_on is None else update.rate_limiter_on
        former = (table.config,)  # a client may have read it
        self._reconfigure(table, config, table.declared, limiter_is_on=is_on, former=former)

    def delete_matching(
        self,
        table: Table,
        actor_id: str,
        env_index: int | None,
        min_age: int,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> Iterator[int]:
        """Remove the items of a table that meet every condition, also those on their way to a reader.

        Yields how many went after each part of the table: others may act then, and what they insert stays.

        Args:
            table: The table.
            actor_id: Who wrote them; empty for anyone.
            env_index: In which of its environments; None for any.
            min_age: How many items, at least, were inserted after them.
            since_s: Unix time, in seconds, from which on they came; None for any.
            until_s: Unix time before which they came; None for any.

        Raises:
            NotFound: No stream of the actor is known, or the table was dropped after a part.
            InvalidArgument: The actor never had such an environment, a time is none, or there is no condition.
        """
        if not actor_id and not min_age and since_s is None and until_s is None:
            raise InvalidArgument(
                "actor_id is '', min_age is 0 and no time range is given: set at least one, or reset the table"
            )
        if env_index is not None and not actor_id:
            raise InvalidArgument(f"env_index is {env_index}, must come with an actor_id")
        youngest, oldest = table.ages_of(min_age, None, since_s, until_s)
        written = self.streams.of_actor(actor_id, env_index) if actor_id else None
        if actor_id and not written:
            yield from self._refuse_actor(table, actor_id)
        items, moves, inserted, start = table.items, table.items.moves, table.items.inserted, 0
        while not start or start < items.used:
            slots = items.held(start, _SLOTS_AT_ONCE)
            ages = items.ages(slots) - (items.inserted - inserted)  # as of the beginning
            slots = slots[(ages >= youngest) & (ages <= oldest)]
            if written is not None:
                streams = table.store.streams_of(items.first_chunks[slots].astype(np.int64))
                slots = slots[places_of(streams, written) >= 0]
            if len(slots):
                self._sink.begin()
                table.delete_slots(slots)
                self._sink.log_changes(self.env_steps, None, [(table, _NO_SLOTS)])
            yield len(slots)
            table.check_there()
            start += _SLOTS_AT_ONCE
            if (table.items, table.items.moves) != (items, moves):  # some may be where it has looked already
                items, moves, start = table.items, table.items.moves, 0

    def _refuse_actor(self, table: Table, actor_id: str) -> Iterator[int]:
        """Raise NotFound for an actor without streams, naming those who wrote a table's items; looks part by part."""
        known, start = self.streams.known, 0
        found: set[int] = set()
        while start < table.items.used:
            chunks = table.items.first_chunks[table.items.held(start, _SLOTS_AT_ONCE)]
            found.update(places_of(table.store.streams_of(chunks.astype(np.int64)), known).tolist())
            yield 0
            table.check_there()
            start += _SLOTS_AT_ONCE
        names = sorted({known[place].actor_id for place in found if place >= 0})
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        raise NotFound(
            f"no streams of actor_id {actor_id!r}; actors with items in {table.config.name!r}: {listed or 'none'}",
            reason=Reason.UNKNOWN_ACTOR,
        )

    def add_table(self, config: TableConfig, number: int) -> Table:
        """Create an empty table under the number a log has for it.

        Raises:
            ResourceExhausted: too many tables, or no memory for one so large.
        """
        if len(self._tables) >= self._max_tables:
            raise ResourceExhausted(
                f"table {config.name!r} would exceed max_tables ({self._max_tables}); drop a table or raise it",
                reason=Reason.TOO_MANY_TABLES,
            )
        store = self._stores.get(config.signature) or self._make_store(config.signature, number)
        with _memory_for(config):
            table = Table(
                config,
                store,
                self._rng,
                number=number,
                durable=self._durable,
                key_salt=_key_salt(self.store_id, number),
            )
        self._stores[config.signature] = store
        self._store_numbers.setdefault(config.signature, number)
        self._tables[config.name] = table
        self.next_table = max(self.next_table, number + 1)
        return table

    def name_store(self, config: TableConfig, number: int) -> ChunkStore:
        """Return a new store of chunks that the log names by a dropped table; others of its signature use it."""
        store = self._stores[config.signature] = self._make_store(config.signature, number)
        self._store_numbers[config.signature] = number
        self.dropped_names[number] = config
        return store

    @property
    def stores(self) -> tuple[ChunkStore, ...]:
        """The chunks of each signature."""
        return tuple(self._stores.values())

    def drop_chunks(self, store: ChunkStore, chunks: Ints) -> int:
        """Remove every item that needs any of the corrupt chunks [N], and release these; return how many items."""
        store.acquire(chunks)  # while their neighbours are looked for: an item of one may need another
        self.corrupt_chunks += len(chunks)
        dropped = 0
        for chunk in chunks.tolist():
            dropped += sum(table.drop_items_of(chunk) for table in self._tables.values() if table.store is store)
            for epoch in self.streams.epochs:
                if epoch.store is store:
                    epoch.forget_chunk(chunk)
        store.release(chunks)
        return dropped

    def delete(self, table: Table, keys: NDArray[np.uint64]) -> int:
        """Remove items of a table by key [N]; return how many were there."""
        table.check_there()
        self._sink.begin()
        deleted = table.delete(keys)
        self._sink.log_changes(self.env_steps, None, [(table, _NO_SLOTS)])
        return deleted

    def reset(self, table: Table) -> int:
        """Remove every item of a table and zero its counters; return how many items there were."""
        return sum(self.resetting(table))

    def resetting(self, table: Table) -> Iterator[int]:
        """Remove every item of a table and zero its counters; then let go of their chunks part by part.

        Yields how many items there were, and 0 after each part: others may act then.
        """
        self._sink.begin()
        chunks: list[Ints] = []
        removed = table.reset(chunks.append)
        self._sink.log_changes(self.env_steps, None, [(table, _NO_SLOTS)])
        leaving = self.memory.leaving(table.store, *chunks)
        yield removed
        while leaving.release_part():
            yield 0
        self.memory.held.discard(leaving)
        self.memory.count()

    def drop_table(self, table: Table) -> int:
        """Remove a table, and with the last of a signature the streams of it; return how many items there were."""
        return sum(self.dropping(table))

    def dropping(self, table: Table) -> Iterator[int]:
        """Remove a table, and with the last of a signature the streams of it; then yield as `resetting` does."""
        parts = self.resetting(table)
        removed = next(parts)  # reported by itself: what reads the log without knowing of drops finds it empty
        name, store = table.config.name, table.store
        del self._tables[name]
        self._unconfirmed.discard(name)
        table.dropped = True
        self.dropped_names[table.number] = table.config
        if all(other.store is not store for other in self._tables.values()):
            self.streams.forget_store(store)
            del self._stores[store.signature]
            del self._store_numbers[store.signature]
        in_use = self._store_numbers.values()
        self.dropped_names = {key: config for key, config in self.dropped_names.items() if key in in_use}
        self._sink.log_drop(table, self.dropped_names)
        yield removed
        yield from parts

    def stored_steps(self, table: Table) -> StoredSteps:
        """Return the agent decisions stored for a table."""
        return StoredSteps(self.store_id, table.counters.env_steps, table.count_id)

    def find(self, name: str) -> Table:
        """Return a table. NotFound: there is none of that name."""
        try:
            return self._tables[name]
        except KeyError:
            raise NotFound(
                f"no table {name!r}; tables: {', '.join(sorted(self._tables)) or 'none'}",
                reason=Reason.UNKNOWN_TABLE,
            ) from None

    def open_streams(
        self,
        actor_id: str,
        epoch: int,
        env_count: int,
        tables: Sequence[str],
        signature: Signature,
        chunk_length: int,
    ) -> AppendSession:
        """Open or resume the streams of an actor; the caller ends it with `close_streams`.

        Raises:
            InvalidArgument: a field is out of range.
            NotFound: a named table does not exist.
            FailedPrecondition: the signature is not the tables', or the epoch was superseded.
            ResourceExhausted: too many streams.
        """
        if not _ACTOR_ID.fullmatch(actor_id):
            raise InvalidArgument(f"actor_id is {actor_id!r}, must match {_ACTOR_ID.pattern}")
        check_range("env_count", env_count, 1, MAX_ENV_COUNT)
        check_range("chunk_length", chunk_length, 1, MAX_CHUNK_LENGTH)
        check_range("number of tables", len(tables), 1, MAX_APPEND_TABLES)
        if len(set(tables)) != len(tables):
            raise InvalidArgument(f"tables is {list(tables)}, must name each once")
        found = tuple(self.find(name) for name in tables)
        for table in found:
            _check_signature(table, signature)
        tail_steps = max(table.config.max_item_steps for table in found) - 1
        self._sink.begin()
        next_epoch = self.streams.next_epoch
        opened = self.streams.open(actor_id, epoch, env_count, found[0].store, chunk_length, tail_steps)
        if self.streams.next_epoch != next_epoch:
            closed = self.streams.drain_closed()
            self.streams.tidy(self.stores)
            self._sink.log_epoch(opened, closed)
        opened.connections += 1
        return AppendSession(opened, found, BlockSizes(signature, chunk_length))

    def close_streams(self, epoch: Epoch) -> None:
        """Note that a call has stopped appending to an epoch, which can be resumed."""
        self.streams.disconnected(epoch)

    def append(
        self, session: AppendSession, planned: AppendPlan, chunks: Sequence[Chunk], items: Sequence[ItemBatch]
    ) -> AppendResult:
        """Store a message; it is planned again if the streams have changed.

        Items of its tables are evicted where memory has no room for it.

        Raises:
            FailedPrecondition: the streams changed in a way that leaves no place for it.
            ResourceExhausted: there is no room for it.
        """
        for table in session.tables:
            table.check_there()
        if planned.revision != session.epoch.revision:
            planned = plan_append(session, chunks, items)
        self._sink.begin()
        pressed = self.memory.make_room(session, planned)
        now_s = self._clock()
        for table in session.tables:
            table.times.note(now_s, table.items.inserted)
            if now_s >= table.times.logged_s + LOGGED_EVERY_S:
                self._log_table(table)
        stored = apply_append(session, planned)
        self.env_steps += planned.decisions
        for table in session.tables:
            table.counters.env_steps += planned.decisions
        self.memory.count()
        if len(stored.slots) or stored.inserted:
            changed = dict.fromkeys((*pressed, *(session.tables if planned.decisions else ())), _NO_SLOTS)
            changed |= dict(stored.inserted)
            new = NewChunks(session.epoch.store, stored.slots, stored.blobs)
            self._sink.log_changes(self.env_steps, new, tuple(changed.items()))
        return stored

    def log_removed(self) -> None:
        """Log the removal of items that were sampled often enough; every other change is logged at once."""
        changed = [(table, _NO_SLOTS) for table in self.tables if table.has_removed]
        if changed:
            self._sink.begin()
            self._sink.log_changes(self.env_steps, None, changed)

    def _free_number(self) -> int:
        """Return the number of the next table, which no table has had: see `TABLE_NUMBERS` for those left out."""
        used = (*self.dropped_names, *(table.number for table in self._tables.values()))
        taken = {number % TABLE_NUMBERS for number in used}
        return next(number for number in itertools.count(self.next_table) if number % TABLE_NUMBERS not in taken)

    def _log_table(self, table: Table) -> None:
        self._sink.log_table(table)
        table.times.logged_s = int(self._clock())

    def _new_values(self, table: Table, wanted: TableConfig, *, is_asked: bool) -> dict[str, Any]:
        """Return the values that are new in what a client says of a table, by field.

        Asked to, also what differs from the declared configuration alone: an operator may have tried it before.

        Raises:
            AlreadyExists: It says something new and may not, or of a field that never changes.
        """
        if not is_asked and wanted in (table.config, table.declared):
            return {}

        def is_new(name: str) -> bool:
            value = getattr(wanted, name)
            if is_asked and name in _CHANGEABLE:
                return bool(value != getattr(table.declared, name))
            return value not in _values(table, name)

        new = [name for name in TableConfig.__dataclass_fields__ if is_new(name)]
        may_change = is_asked or wanted.name in self._unconfirmed
        if new and not (may_change and set(new) <= set(_CHANGEABLE)):
            raise AlreadyExists(f"table {wanted.name!r} exists with {_difference(table, wanted, new)}")
        return {name: getattr(wanted, name) for name in new}

    def _reconfigure(
        self,
        table: Table,
        config: TableConfig,
        declared: TableConfig,
        *,
        limiter_is_on: bool,
        former: Sequence[TableConfig] = (),
    ) -> None:
        for _ in self.shrink(table, config):
            pass
        self._sink.begin()
        with _memory_for(config):
            table.reconfigure(config, limiter_is_on=limiter_is_on)
        table.declared = declared
        table.former.extend(former)
        self.memory.count()
        # The configuration comes last: without it, what is before still fits the old one.
        self._sink.log_changes(self.env_steps, None, [(table, _NO_SLOTS)])
        self._log_table(table)

    def _make_store(self, signature: Signature, number: int) -> ChunkStore:
        blocks = self._make_blocks(signature, number) if self._make_blocks is not None else None
        return ChunkStore(signature, blocks)


@contextmanager
def _memory_for(config: TableConfig) -> Iterator[None]:
    """Raise ResourceExhausted if the block has no memory for the items of a table."""
    try:
        yield
    except MemoryError as error:
        raise ResourceExhausted(
            f"max_items is {config.max_items}, too many for the server's memory; lower it",
            reason=Reason.MEMORY_FULL,
        ) from error


def _check_signature(table: Table, signature: Signature) -> None:
    wanted = table.config.signature
    if signature == wanted:
        return
    if column_names(signature) != column_names(wanted):
        got, names = list(column_names(signature)), list(column_names(wanted))
        raise FailedPrecondition(
            f"signature has columns {got}, table {table.config.name!r} has {names}", reason=Reason.SIGNATURE_DIFFERS
        )
    got_column, column = next((a, b) for a, b in zip(signature, wanted, strict=True) if a != b)
    raise FailedPrecondition(
        f"signature has {got_column}, table {table.config.name!r} has {column}", reason=Reason.SIGNATURE_DIFFERS
    )


def _values(table: Table, name: str) -> tuple[object, ...]:
    """Return the values that a client may give for a field: the present, the declared and all in between."""
    return tuple(getattr(config, name) for config in (table.config, table.declared, *table.former))


def _difference(table: Table, wanted: TableConfig, names: Sequence[str]) -> str:
    """Name the fields in which a client and a table differ."""
    parts = []
    for name in names:
        if name == "signature":
            parts.append(f"signature with {_differing_columns(table.config.signature, wanted.signature)}")
            continue
        now, declared = _values(table, name)[:2]
        before = f" (and {declared} before it was changed in use)" if declared != now else ""
        parts.append(f"{name} {now}{before}, not {getattr(wanted, name)}")
    return "; ".join(parts)


def _differing_columns(signature: Signature, wanted: Signature) -> str:
    """Name the columns in which the signature of a table differs from the one that a client wants."""
    here, theirs = ({column.name: column for column in each} for each in (signature, wanted))
    parts = []
    for name in {**here, **theirs}:
        if name not in theirs:
            parts.append(f"column {name!r}, which is not wanted")
        elif name not in here:
            parts.append(f"no column {name!r}")
        elif here[name] != theirs[name]:
            parts.append(f"column {name!r} {_described(here[name])}, not {_described(theirs[name])}")
    return ", ".join(parts) or f"columns in the order {list(here)}, not {list(theirs)}"


def _described(column: ColumnSpec) -> str:
    return f"{column.dtype} {list(column.shape)} ({column.codec.value})"
