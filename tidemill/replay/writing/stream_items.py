"""The items of a writer's streams whose last step is not sent yet, and the windows that become items by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.replay.argument_types import check_integer, check_number, check_type
from tidemill.replay.limits import MAX_MESSAGE_BYTES, MAX_MESSAGE_ITEMS, payload_room
from tidemill.replay.table_config import MAX_PRIORITY, TableConfig
from tidemill.replay.writing.chunk import ItemBatch, check_priorities
from tidemill.replay.writing.stream_rows import StreamRows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ItemWindow:
    """Which steps become items by themselves, as they are appended.

    Attributes:
        length: Steps of an item: n + 1 for n-step returns over steps that hold one observation each.
        stride: Distance between the starts of two neighbouring items of an episode, in steps.
        priority: First priority of the items.
        partial: Fewest steps of the shorter items that `end_episode` makes, one from every start behind the last whole
            item's: 2 for n-step returns over steps that hold one observation each, 1 where a step holds a transition.
            0: none.
    """

    length: int
    stride: int = 1
    priority: float = 1.0
    partial: int = 0

    def __post_init__(self) -> None:
        check_integer("length", self.length)
        check_integer("stride", self.stride)
        check_integer("partial", self.partial)
        if self.length < 1 or self.stride < 1:
            raise InvalidArgument(f"length is {self.length} and stride is {self.stride}, must be at least 1")
        if self.partial < 0:
            raise InvalidArgument(f"partial is {self.partial}, must be at least 0")
        check_number("priority", self.priority)
        check_priorities(np.array([self.priority], np.float64), least=-MAX_PRIORITY)


@dataclass(frozen=True, slots=True)
class _Item:
    """An item whose last step is not sent yet."""

    table: int
    last_offset: int
    length: int
    priority: float
    payload: bytes


class StreamItems:
    """What ends in the present chunk of each stream.

    Attributes:
        dropped: Items that were not sent because the server had lost some of their steps.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        rows: StreamRows,
        windows: ItemWindow | Mapping[str, ItemWindow] | None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Watch rows.

        Args:
            tables: The tables that items go to.
            rows: The rows that items end with.
            windows: Items that are made by themselves, of every table or by the table's name.
            max_message_bytes: Bytes of a message; some of it is for payloads.

        Raises:
            InvalidArgument: A window is longer than items of its table may be, or its table has payloads.
        """
        self._tables, self._rows, self.dropped = tables, rows, 0
        self._windows = _checked(tables, windows)
        self._payload_room = payload_room(max_message_bytes)
        self._pending: list[list[_Item]] = [[] for _ in rows.all]
        self._next_start = np.zeros((len(tables), len(rows.all)), np.int64)  # of windows, in steps of the episode

    def add(self, table: int, envs: Ints, length: int, priority: float = 1.0, payload: bytes = b"") -> None:
        """Make an item of the newest steps of each of some streams.

        Raises:
            InvalidArgument: Too many items end in one chunk, or their payloads have too many bytes.
        """
        for env in envs.tolist():
            items = self._pending[env]
            if len(items) >= MAX_MESSAGE_ITEMS:
                raise InvalidArgument(f"{len(items)} items end in one chunk, must be at most {MAX_MESSAGE_ITEMS}")
            payload_bytes = len(payload) * (len(items) + 1)
            if payload_bytes > self._payload_room:
                payload_bytes = sum(len(item.payload) for item in items) + len(payload)
            if payload_bytes > self._payload_room:
                raise InvalidArgument(
                    f"the payloads of {len(items) + 1} items that end in one chunk have {payload_bytes} bytes, must "
                    f"have at most {self._payload_room} (a quarter of max_message_bytes): use a smaller chunk_length"
                )
            items.append(_Item(table, int(self._rows.filled[env]) - 1, length, float(priority), payload))

    def added_rows(self, envs: Ints) -> None:
        """Make items of the windows that the newest row of each of some streams completes: at most one of a table."""
        steps = self._rows.episode_steps
        for table, window in self._windows.items():
            next_start = self._next_start[table]
            complete = envs[next_start[envs] + window.length <= steps[envs]]
            if len(complete):
                self.add(table, complete, window.length, window.priority)
                next_start[complete] += window.stride

    def end_episode(self, envs: Ints) -> None:
        """Make the partial items of streams whose episode ends, and begin with another."""
        for table, window in self._windows.items():
            if window.partial:
                for env in envs.tolist():
                    self._add_partial(table, window, env)
        self._next_start[:, envs] = 0

    def pending_in(self, env: int) -> bool:
        """Return whether items end in the present chunk of a stream."""
        return bool(self._pending[env])

    def sent(self, envs: Ints) -> None:
        """Forget the items of chunks that were sent."""
        for env in envs.tolist():
            self._pending[env] = []

    def batches(self, envs: Ints) -> list[ItemBatch]:
        """Return the items that end in the chunks of some streams, in order of their tables.

        What would begin before step 0 of its stream, one that had to restart, is left out and counted.
        """
        found: dict[int, list[tuple[int, _Item]]] = {}
        for place, env in enumerate(envs.tolist()):
            first_step = int(self._rows.first_step[env])
            for item in self._pending[env]:
                if item.length <= first_step + item.last_offset + 1:
                    found.setdefault(item.table, []).append((place, item))
                else:
                    self.dropped += 1
        return [self._batch(table, items) for table, items in sorted(found.items())]

    def state(self) -> tuple[list[list[tuple[int, int, int, float, str]]], Ints]:
        """Return the items that wait, by stream, payloads in hexadecimal, and where windows begin next."""
        waiting = [
            [(item.table, item.last_offset, item.length, item.priority, item.payload.hex()) for item in items]
            for items in self._pending
        ]
        return waiting, self._next_start

    def restore(self, waiting: Sequence[Sequence[tuple[int, int, int, float, str]]], next_start: Ints) -> None:
        """Go on with the items and windows of a `state`."""
        self._pending = [
            [
                _Item(table, offset, length, priority, bytes.fromhex(payload))
                for table, offset, length, priority, payload in one
            ]
            for one in waiting
        ]
        self._next_start[:] = next_start

    def forget(self, envs: Ints) -> None:
        """Forget the items of some streams that wait, and begin with other episodes."""
        self.sent(envs)
        self._next_start[:, envs] = 0

    @property
    def windows(self) -> dict[str, str]:
        """The windows by table, as text."""
        return {self._tables[table].name: repr(window) for table, window in self._windows.items()}

    def _batch(self, table: int, items: Sequence[tuple[int, _Item]]) -> ItemBatch:
        return ItemBatch(
            table_index=table,
            chunk_indices=np.array([place for place, _ in items], np.int64),
            last_offsets=np.array([item.last_offset for _, item in items], np.int64),
            lengths=np.array([item.length for _, item in items], np.int64),
            priorities=np.array([item.priority for _, item in items], np.float64),
            payloads=tuple(item.payload for _, item in items) if self._tables[table].payload_bytes else (),
        )

    def _add_partial(self, table: int, window: ItemWindow, env: int) -> None:
        steps, here = int(self._rows.episode_steps[env]), np.array([env])
        for start in range(int(self._next_start[table, env]), steps - window.partial + 1, window.stride):
            if steps - start <= self._rows.available(here):
                self.add(table, here, steps - start, window.priority)


def _checked(
    tables: Sequence[TableConfig], windows: ItemWindow | Mapping[str, ItemWindow] | None
) -> dict[int, ItemWindow]:
    """Return the window of each table that has one, by the table's place."""
    names = [table.name for table in tables]
    instead = "an ItemWindow, such as ItemWindow(length=2), or a dict of them by the name of their table"
    check_type("windows", windows, (ItemWindow, Mapping, type(None)), instead)
    named = dict.fromkeys(names, windows) if isinstance(windows, ItemWindow) else dict(windows or {})
    for name, window in named.items():
        check_type(f"the window of table {name!r}", window, ItemWindow, "an ItemWindow, such as ItemWindow(length=2)")
        if name not in names:
            raise InvalidArgument(f"windows names table {name!r}, must be one of {names}")
        config = tables[names.index(name)]
        if window.length > config.max_item_steps:
            raise InvalidArgument(
                f"length of the window of table {name!r} is {window.length}, "
                f"must be at most its max_item_steps ({config.max_item_steps})"
            )
        if window.priority < config.least_priority:
            raise InvalidArgument(
                f"priority of the window of table {name!r} is {window.priority:g}, must be at least 0: it has a "
                "prioritized selector"
            )
        if config.payload_bytes:
            raise InvalidArgument(f"table {name!r} has payloads, which windows have not: use `create_item`")
    return {names.index(name): window for name, window in named.items()}
