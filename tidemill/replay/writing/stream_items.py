"""The items of a writer's streams whose last step is not sent yet, and the windows that become items by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.arrays import Array, Ints
from tidemill.errors import InvalidArgument
from tidemill.replay.argument_types import check_integer, check_number, check_type
from tidemill.replay.chunk import ItemBatch, allowed_priorities, are_priorities, check_priorities
from tidemill.replay.limits import MAX_MESSAGE_BYTES, MAX_MESSAGE_ITEMS, payload_room
from tidemill.replay.table_config import MAX_PRIORITY, TableConfig
from tidemill.replay.writing.stream_rows import StreamRows

FirstPriority = Callable[[Mapping[str, Array]], ArrayLike]
"""From the columns of K windows of one length, each [length, K, ...], to their first priorities [K]."""

PAYLOAD = "*payload"
"""Name under which `StreamRows` keeps what windows that start with a row carry."""


@dataclass(frozen=True)
class ItemWindow:
    """Windows of steps that become items as they are appended.

    Attributes:
        length: Steps of an item: n + 1 for n-step returns over steps that hold one observation each.
        stride: Distance between the starts of two neighbouring items of an episode, in steps.
        priority: First priority of the items, or what computes it for all windows of a message at once: a function of
            their columns, by name, each [length, K, ...], that returns [K]. It is given every column of the steps and
            of `beside` in `ReplayWriter.append`, each copied when it is asked for, without the history. An item for
            which it returns NaN or another number that cannot be a priority is left out, with an `InvalidArgument`; so
            are all that it was called for if it raises.
        partial: Fewest steps of the shorter items that `end_episode` makes, one from every start behind the last whole
            item's: 2 for n-step returns over steps that hold one observation each, 1 where a step holds a transition.
            0: none.
        history: Steps before the first of `length` that the item has besides, such as those of a stack of frames. At
            the beginning there are fewer.
        across_episodes: Whether items cover the ends of episodes, with starts counted from the writer's first step:
            for learners that find the ends by a column.
        keep_all: Whether even a step without a decision starts an item, and one whose history was lost with its server
            is sent without it: for a learner that waits for as many items as there are streams.
    """

    length: int
    stride: int = 1
    priority: float | FirstPriority = 1.0
    partial: int = 0
    history: int = 0
    across_episodes: bool = False
    keep_all: bool = False

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("stride", 1), ("partial", 0), ("history", 0)):
            value = getattr(self, name)
            check_integer(name, value)
            if value < least:
                raise InvalidArgument(f"{name} is {value}, must be at least {least}")
        if self.partial > self.length:
            raise InvalidArgument(f"partial is {self.partial}, must be 0 .. {self.length}, the length")
        if self.partial and self.across_episodes:
            raise InvalidArgument(f"partial is {self.partial}, must be 0 with across_episodes: no episode ends an item")
        if not callable(self.priority):
            check_number("priority", self.priority)
            check_priorities(np.array([self.priority], np.float64), least=-MAX_PRIORITY)

    def __str__(self) -> str:
        """The window's settings as text, the same in every process; callables are shown as `...`."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        plain = [(name, value.item() if isinstance(value, np.generic) else value) for name, value in given]
        shown = [(name, "..." if callable(value) else repr(value)) for name, value in plain]
        always = ("length", "stride", "priority", "partial")
        unlike = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        return f"ItemWindow({', '.join(f'{name}={text}' for name, text in shown if name in {*always, *unlike})})"


class _Items(NamedTuple):
    """Items of one table that wait for their chunks to be sent, in the order in which they came.

    Attributes:
        env: Whose they are, [K].
        last_offset: Place of the last row in the present chunk, [K].
        length: Steps, [K].
        window: Steps of it from the first that is not history; 0 for what `create_item` made, [K].
        priority: First priority; NaN where the window computes it, float64 [K].
        payload: Its bytes, uint8 [K, bytes], of a window as zeros.
    """

    env: Ints
    last_offset: Ints
    length: Ints
    window: Ints
    priority: NDArray[np.float64]
    payload: NDArray[np.uint8]

    def taken(self, which: Array) -> _Items:
        """Return some of them."""
        columns: tuple[Array, ...] = self
        return _Items(*(column[which] for column in columns))


class WindowColumns(Mapping[str, Array]):
    """The columns of some windows, each [length, K, ...], copied when they are asked for."""

    def __init__(self, rows: StreamRows, envs: Ints, last_offsets: Ints, length: int) -> None:
        """Name the windows by their streams [K] and the places of their last rows [K]."""
        self._rows, self._envs = rows, envs
        self._places = rows.rows_of(envs, last_offsets + np.arange(1 - length, 1)[:, None])

    def __getitem__(self, name: str) -> Array:
        """Return a column."""
        return self._rows.column(name)[self._envs, self._places]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name in self._rows.names if name != PAYLOAD)

    def __len__(self) -> int:
        """Return the number of columns."""
        return sum(1 for _ in self)


class StreamItems:
    """Items that end in the present chunk of each stream.

    Windows are found when the items are needed, those of all streams together: appending a row costs nothing.

    Attributes:
        dropped: Items that were not sent because the server had lost some of their steps, or because their window
            computed no priority for them.
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
            InvalidArgument: A window is longer than items of its table may be, or two tables' payloads differ in size.
        """
        self._tables, self._rows, self.dropped = tables, rows, 0
        self._windows = _checked(tables, windows)
        self._payload_room = payload_room(max_message_bytes)
        self._next_start = np.zeros((len(tables), len(rows.all)), np.int64)  # of windows, in steps since their origin
        self._ends = np.zeros(len(rows.all), np.int64)  # items that end in the present chunk
        self._payload_sizes = np.zeros(len(rows.all), np.int64)  # bytes of their payloads
        self._pending: dict[int, list[_Items]] = {index: [] for index in range(len(tables))}
        self._reach_back = 0  # items of the newest `batches` that begin before their stream

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload that each step must bring for the windows that start with it."""
        return max((self._tables[index].payload_bytes for index in self._windows), default=0)

    @property
    def wants_beside(self) -> bool:
        """Whether a window computes priorities from columns that are not sent."""
        return any(callable(window.priority) for window in self._windows.values())

    @property
    def across_episodes(self) -> bool:
        """Whether items may have steps of several episodes."""
        return any(window.across_episodes for window in self._windows.values())

    @property
    def starts_window(self) -> bool:
        """Whether the next row is the first of a window that covers the ends of episodes, in each stream."""
        next_step = self._rows.stream_steps[0]
        return any(each.across_episodes and not next_step % each.stride for each in self._windows.values())

    def add(self, table: int, envs: Ints, length: int, priority: float = 1.0, payload: bytes = b"") -> None:
        """Make an item of the newest steps of each of some streams.

        Raises:
            InvalidArgument: Too many items end in one chunk, or their payloads have too many bytes.
        """
        self.find()
        ends, sizes = int(self._ends[envs].max()), int(self._payload_sizes[envs].max()) + len(payload)
        if ends >= MAX_MESSAGE_ITEMS:
            raise InvalidArgument(f"{ends} items end in one chunk, must be at most {MAX_MESSAGE_ITEMS}")
        if sizes > self._payload_room:
            raise InvalidArgument(
                f"the payloads of {ends + 1} items that end in one chunk have {sizes} bytes, must have at most "
                f"{self._payload_room} (a quarter of max_message_bytes): use a smaller chunk_length"
            )
        count = len(envs)
        found = np.frombuffer(payload, np.uint8)
        self._put(
            table,
            _Items(
                env=envs,
                last_offset=self._rows.filled[envs] - 1,
                length=np.full(count, length, np.int64),
                window=np.zeros(count, np.int64),
                priority=np.full(count, priority, np.float64),
                payload=np.broadcast_to(found, (count, len(found))),
            ),
        )

    def find(self) -> None:
        """Make items of the windows that rows have completed since the last call, oldest first."""
        for table, window in self._windows.items():
            steps, next_start = self._steps(window), self._next_start[table]
            counts = (steps - window.length - next_start) // window.stride + 1
            np.maximum(counts, 0, out=counts)
            if counts.any():
                env, start = _starts(self._rows.all, counts, next_start, window.stride)
                self._put_windows(table, env, start, np.full(len(env), window.length, np.int64))
                next_start += counts * window.stride

    def end_episode(self, envs: Ints) -> None:
        """Make the partial items of streams whose episode ends, and begin with another."""
        self.find()
        for table, window in self._windows.items():
            if window.across_episodes:
                continue
            if window.partial:
                steps, next_start = self._rows.episode_steps[envs], self._next_start[table, envs]
                counts = np.maximum((steps - window.partial - next_start) // window.stride + 1, 0)
                env, start = _starts(envs, counts, next_start, window.stride)
                length = np.repeat(steps, counts) - start
                is_held = length <= self._rows.held(env)
                self._put_windows(table, env[is_held], start[is_held], length[is_held])
            self._next_start[table, envs] = 0

    def pending_in(self, env: int) -> bool:
        """True if items end in a stream's unsent chunk."""
        return bool(self._ends[env])

    def sent(self, envs: Ints) -> None:
        """Forget the items of chunks that were sent, those of the newest `batches`."""
        self.dropped += self._reach_back
        self._reach_back = 0
        self._drop(envs)

    def _drop(self, envs: Ints) -> None:
        if len(envs) == len(self._rows.all):
            self._pending = {table: [] for table in self._pending}
        else:
            for table, parts in self._pending.items():
                left = (part.taken(~np.isin(part.env, envs)) for part in parts)
                self._pending[table] = [part for part in left if len(part.env)]
        self._ends[envs] = self._payload_sizes[envs] = 0

    def batches(self, envs: Ints) -> list[ItemBatch]:
        """Return the items that end in the chunks of some streams, those of a table in order of their last steps.

        What would begin before step 0 of its stream, one that had to restart, is left out and counted.

        Raises:
            InvalidArgument: A window computed no priority for some items; they are left out and counted, and the next
                call returns the others. So it does after an error that the window's function raises.
        """
        self.find()
        self._reach_back = 0
        places = np.full(len(self._rows.all), -1, np.int64)
        places[envs] = np.arange(len(envs))
        batches = [self._batch(table, places) for table, parts in self._pending.items() if parts]
        return [batch for batch in batches if len(batch.lengths)]

    def state(self) -> tuple[list[list[tuple[int, int, int, float, str]]], Ints]:
        """Return the items that wait, by stream, payloads in hexadecimal, and where windows begin next.

        Raises:
            InvalidArgument: As of `batches`.
        """
        self.find()
        waiting: list[list[tuple[int, int, int, float, str]]] = [[] for _ in self._rows.all]
        for table, parts in self._pending.items():
            if not parts:
                continue
            items = self._joined(table)
            found = self._computed(table, items, np.arange(len(items.env)))
            payloads = [row.tobytes().hex() for row in found.payload]
            columns = (found.env, found.last_offset, found.length, found.priority)
            for env, *numbers, payload in zip(*(each.tolist() for each in columns), payloads, strict=True):
                waiting[env].append((table, *numbers, payload))
        return waiting, self._next_start

    def restore(self, waiting: Sequence[Sequence[tuple[int, int, int, float, str]]], next_start: Ints) -> None:
        """Continue with the items and windows of a `state`."""
        rows = [(env, *item) for env, items in enumerate(waiting) for item in items]
        for table in self._pending:
            own = [row for row in rows if row[1] == table]
            if own:
                env, _, last_offset, length, priority, payload = zip(*own, strict=True)
                self._put(
                    table,
                    _Items(
                        env=np.array(env, np.int64),
                        last_offset=np.array(last_offset, np.int64),
                        length=np.array(length, np.int64),
                        window=np.zeros(len(own), np.int64),
                        priority=np.array(priority, np.float64),
                        payload=np.frombuffer(bytes.fromhex("".join(payload)), np.uint8).reshape(len(own), -1),
                    ),
                )
        self._next_start[:] = next_start

    def forget(self, envs: Ints) -> None:
        """Forget the items of some streams that wait, and begin with other episodes."""
        self._drop(envs)
        self._next_start[:, envs] = 0

    @property
    def windows(self) -> dict[str, str]:
        """The windows by table, as text."""
        return {self._tables[table].name: str(window) for table, window in self._windows.items()}

    def _steps(self, window: ItemWindow) -> Ints:
        """Return the steps of each stream since its windows' origin."""
        return self._rows.stream_steps if window.across_episodes else self._rows.episode_steps

    def _put_windows(self, table: int, env: Ints, start: Ints, steps: Ints) -> None:
        """Make items of windows that start at some steps since their origin and have so many, without their history."""
        window, rows = self._windows[table], self._rows
        last_offset = rows.filled[env] - self._steps(window)[env] + start + steps - 1
        length = steps
        if window.history:
            length = steps + np.minimum(window.history, start)
        size = self._tables[table].payload_bytes
        items = _Items(
            env=env,
            last_offset=last_offset,
            length=length,
            window=steps,
            priority=np.full(len(env), 0.0 if callable(window.priority) else window.priority, np.float64),
            payload=np.zeros((len(env), size), np.uint8),
        )
        if not window.keep_all:
            may_start = rows.is_decision[env, rows.rows_of(env, last_offset - steps + 1)]
            if not may_start.all():
                items = items.taken(may_start)
        self._put(table, items)

    def _put(self, table: int, items: _Items) -> None:
        if not len(items.env):
            return
        self._pending[table].append(items)
        ends = np.bincount(items.env, minlength=len(self._ends))
        self._ends += ends
        self._payload_sizes += ends * self._tables[table].payload_bytes

    def _joined(self, table: int) -> _Items:
        """Return the items of a table that wait, which are then one part."""
        parts = self._pending[table]
        items = parts[0] if len(parts) == 1 else _Items(*map(np.concatenate, zip(*parts, strict=True)))
        self._pending[table] = [items]
        return items

    def _leave_out(self, table: int, which: Ints) -> None:
        """Forget some of the items of `_joined`, by their places, and count them."""
        items = self._joined(table)
        self.dropped += len(which)
        ends = np.bincount(items.env[which], minlength=len(self._ends))
        self._ends -= ends
        self._payload_sizes -= ends * self._tables[table].payload_bytes
        self._pending[table] = [items.taken(np.delete(np.arange(len(items.env)), which))]

    def _computed(self, table: int, items: _Items, places: Ints) -> _Items:
        """Return items with the priorities and payloads of windows; raises as `batches`.

        Args:
            table: Whose items they are.
            items: Some of those that wait.
            places: Theirs among those of `_joined`, [K].
        """
        window, rows = self._windows.get(table), self._rows
        if window is None or not len(items.env):
            return items
        priority, payload = items.priority, items.payload
        if callable(window.priority):
            priority = priority.copy()
            for length in _distinct(items.window):
                which = np.flatnonzero(items.window == length)
                env = items.env[which]
                columns = WindowColumns(rows, env, items.last_offset[which], length)
                priority[which] = self._first_priorities(table, window.priority, columns, env, places[which])
        if self._tables[table].payload_bytes:
            payload, by_window = payload.copy(), items.window > 0
            env, first = items.env[by_window], (items.last_offset - items.window + 1)[by_window]
            payload[by_window] = rows.column(PAYLOAD)[env, rows.rows_of(env, first)]
        return items._replace(priority=priority, payload=payload)

    def _first_priorities(
        self, table: int, compute: FirstPriority, columns: WindowColumns, envs: Ints, places: Ints
    ) -> NDArray[np.float64]:
        """Return a window's priorities of items of one length, [K], at `places` of `_joined`; raises as `batches`."""
        config = self._tables[table]
        named, least = f"priority of the window of table {config.name!r}", config.least_priority
        is_right = np.zeros(len(places), np.bool_)
        try:
            priority = np.asarray(compute(columns), np.float64)
            if priority.shape != places.shape:
                raise InvalidArgument(
                    f"{named} returned shape {priority.shape}, must return {places.shape}: one for each window"
                )
            is_right = are_priorities(priority, least)
            if not is_right.all():
                at = int(is_right.argmin())
                raise InvalidArgument(
                    f"{named} returned {priority[at]} for environment {envs[at]}, must be {allowed_priorities(least)}; "
                    f"items left out: {np.count_nonzero(~is_right)}"
                )
        except Exception:
            self._leave_out(table, places[~is_right])
            raise
        return priority

    def _batch(self, table: int, places: Ints) -> ItemBatch:
        """Return the items of a table whose streams have a place among the chunks."""
        items = self._joined(table)
        place = places[items.env]
        reach = self._rows.first_step[items.env] + items.last_offset + 1  # rows of the stream up to the last one
        length, window = items.length, self._windows.get(table)
        if window is not None and window.keep_all:
            length = np.where(items.window > 0, np.clip(reach, items.window, length), length)
        is_sent = place >= 0
        may_go = is_sent & (length <= reach)
        self._reach_back += int(np.count_nonzero(is_sent) - np.count_nonzero(may_go))
        order = np.lexsort((place, items.last_offset))  # stable: those of one row as they came
        sent = order[may_go[order]]
        items = self._computed(table, items._replace(length=length).taken(sent), sent)
        return ItemBatch(
            table_index=table,
            chunk_indices=places[items.env],
            last_offsets=items.last_offset,
            lengths=items.length,
            priorities=items.priority,
            payloads=tuple(row.tobytes() for row in items.payload) if self._tables[table].payload_bytes else (),
        )


def _starts(envs: Ints, counts: Ints, next_start: Ints, stride: int) -> tuple[Ints, Ints]:
    """Return stream and first step of so many windows of each of some streams, [sum(counts)] each."""
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(envs, counts), np.repeat(next_start, counts) + (np.arange(len(before)) - before) * stride


def _distinct(lengths: Ints) -> list[int]:
    """Return the different lengths of windows, without the 0 of what is none."""
    first = int(lengths[0])
    if first and (lengths == first).all():
        return [first]
    return [length for length in np.unique(lengths).tolist() if length]


def _checked(
    tables: Sequence[TableConfig], windows: ItemWindow | Mapping[str, ItemWindow] | None
) -> dict[int, ItemWindow]:
    """Return the window of each table that has one, by the table's place."""
    names = [table.name for table in tables]
    instead = "an ItemWindow, such as ItemWindow(length=2), or a dict of them by the name of their table"
    check_type("windows", windows, (ItemWindow, Mapping, type(None)), instead)
    named = dict.fromkeys(names, windows) if isinstance(windows, ItemWindow) else dict(windows or {})
    sizes: dict[str, int] = {}
    for name, window in named.items():
        check_type(f"the window of table {name!r}", window, ItemWindow, "an ItemWindow, such as ItemWindow(length=2)")
        if name not in names:
            raise InvalidArgument(f"windows names table {name!r}, must be one of {names}")
        config = tables[names.index(name)]
        if window.length + window.history > config.max_item_steps:
            raise InvalidArgument(
                f"length of the window of table {name!r}, with its history, is {window.length + window.history}, "
                f"must be at most its max_item_steps ({config.max_item_steps})"
            )
        if not callable(window.priority) and window.priority < config.least_priority:
            raise InvalidArgument(
                f"priority of the window of table {name!r} is {window.priority:g}, must be at least 0: it has a "
                "prioritized selector"
            )
        if config.payload_bytes:
            sizes[name] = config.payload_bytes
    if len(set(sizes.values())) > 1:
        raise InvalidArgument(f"tables with windows have payloads of {sizes} bytes, must have equal ones")
    return {names.index(name): window for name, window in named.items()}
