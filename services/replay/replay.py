"""The whole state of a replay server: its tables, their chunk stores and the streams. Plain and synchronous."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from services.replay.append import Appending, Plan, plan, store
from services.replay.append_check import block_sizes
from services.replay.chunk_store import ChunkStore
from services.replay.streams import Epoch, StreamRegistry
from services.replay.table import Table
from tidemill.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.table_config import TableConfig
from tidemill.types import Signature, column_names

MAX_CHUNK_LENGTH = 1024
MAX_APPEND_TABLES = 16
_ACTOR_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Replay:
    """Tables and streams of one server."""

    def __init__(self, *, max_tables: int, max_streams: int, first_epoch: int, rng: np.random.Generator) -> None:
        """Create a server without tables.

        Args:
            max_tables: Most tables.
            max_streams: Most streams; see `StreamRegistry`.
            first_epoch: Number of the first epoch; see `StreamRegistry`.
            rng: Source of all random picks.
        """
        self._max_tables = max_tables
        self._rng = rng
        self._tables: dict[str, Table] = {}
        self._stores: dict[Signature, ChunkStore] = {}
        self.streams = StreamRegistry(first_epoch, max_streams)
        self.env_steps = 0

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

    def create_table(self, config: TableConfig) -> bool:
        """Create a table; return False if an equal one exists.

        Raises:
            AlreadyExists: the name is taken by a table with another configuration.
            ResourceExhausted: too many tables, or no memory for one so large.
        """
        existing = self._tables.get(config.name)
        if existing is not None:
            if existing.config != config:
                raise AlreadyExists(f"table {config.name!r} exists with {_difference(existing.config, config)}")
            return False
        if len(self._tables) >= self._max_tables:
            raise ResourceExhausted(f"table {config.name!r} would be one more than max_tables ({self._max_tables})")
        store = self._stores.get(config.signature) or ChunkStore(config.signature)
        try:
            table = Table(config, store, self._rng)
        except MemoryError as error:
            raise ResourceExhausted(f"max_items is {config.max_items}, too many for the server's memory") from error
        self._stores[config.signature] = store
        self._tables[config.name] = table
        return True

    def find(self, name: str) -> Table:
        """Return a table. NotFound: there is none of that name."""
        try:
            return self._tables[name]
        except KeyError:
            raise NotFound(f"no table {name!r}; there are: {', '.join(sorted(self._tables)) or 'none'}") from None

    def open_streams(
        self,
        actor_id: str,
        epoch: int,
        env_count: int,
        tables: Sequence[str],
        signature: Signature,
        chunk_length: int,
    ) -> Appending:
        """Open or resume the streams of an actor; the caller ends it with `close_streams`.

        Raises:
            InvalidArgument: a field is out of range.
            NotFound: a named table does not exist.
            FailedPrecondition: the signature is not the tables', or the epoch was superseded.
            ResourceExhausted: too many streams.
        """
        if not _ACTOR_ID.fullmatch(actor_id):
            raise InvalidArgument(f"actor_id is {actor_id!r}, must match {_ACTOR_ID.pattern}")
        _check_range("env_count", env_count, 2**31 - 1)
        _check_range("chunk_length", chunk_length, MAX_CHUNK_LENGTH)
        _check_range("number of tables", len(tables), MAX_APPEND_TABLES)
        if len(set(tables)) != len(tables):
            raise InvalidArgument(f"tables is {list(tables)}, must name each once")
        found = tuple(self.find(name) for name in tables)
        for table in found:
            _check_signature(table, signature)
        tail_steps = max(table.config.max_item_steps for table in found) - 1
        opened = self.streams.open(actor_id, epoch, env_count, found[0].store, chunk_length, tail_steps)
        opened.connections += 1
        return Appending(opened, found, block_sizes(signature))

    def close_streams(self, epoch: Epoch) -> None:
        """Note that a call no longer appends to an epoch, which can be resumed."""
        self.streams.disconnected(epoch)

    def append(self, appending: Appending, planned: Plan, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> None:
        """Store a message; it is planned anew if the streams changed since.

        Raises:
            FailedPrecondition: the streams changed in a way that leaves no place for it.
        """
        if planned.revision != appending.epoch.revision:
            planned = plan(appending, chunks, items)
        store(appending, planned)
        self.env_steps += planned.decisions


def _check_range(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise InvalidArgument(f"{name} is {value}, must be 1 .. {high}")


def _check_signature(table: Table, signature: Signature) -> None:
    wanted = table.config.signature
    if signature == wanted:
        return
    if column_names(signature) != column_names(wanted):
        got, names = list(column_names(signature)), list(column_names(wanted))
        raise FailedPrecondition(f"signature has columns {got}, table {table.config.name!r} has {names}")
    got_column, column = next((a, b) for a, b in zip(signature, wanted, strict=True) if a != b)
    raise FailedPrecondition(f"signature has {got_column}, table {table.config.name!r} has {column}")


def _difference(existing: TableConfig, wanted: TableConfig) -> str:
    """Name the fields in which two configurations differ."""
    fields = [name for name in TableConfig.__dataclass_fields__ if getattr(existing, name) != getattr(wanted, name)]
    return "; ".join(f"{name} {getattr(existing, name)}, not {getattr(wanted, name)}" for name in fields)
