"""Which windows of streams become items whatever the episodes do: counted by hand, and against a slow model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.replay import ItemWindow, SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.chunk import ItemBatch
from tidemill.replay.writing.stream_items import PAYLOAD, FirstPriority, StreamItems
from tidemill.replay.writing.stream_rows import StreamRows
from tidemill.types import ColumnSpec

Array = NDArray[np.generic]

_SIGNATURE = (ColumnSpec("reward", "float32", ()),)


class _Item(NamedTuple):
    env: int
    last_row: int
    length: int
    priority: float
    payload: bytes


def _oldest_reward(steps: Mapping[str, Array]) -> Array:
    oldest: Array = steps["reward"][0]
    return oldest


def _window(
    history: int,
    steps: int,
    stride: int = 1,
    priority: float | FirstPriority = _oldest_reward,
    *,
    keep_all: bool = False,
) -> ItemWindow:
    """Return the window of an actor: `steps` transitions behind a history."""
    return ItemWindow(steps + 1, stride, priority, history=history, across_episodes=True, keep_all=keep_all)


class _Streams:
    """Rows of N streams in step, of which every chunk is sent when it is full, and their items."""

    def __init__(self, window: ItemWindow, num_envs: int = 1, chunk_length: int = 1, payload_bytes: int = 0) -> None:
        longest = window.length + window.history
        table = TableConfig(
            "t",
            _SIGNATURE,
            SelectorConfig(SelectorKind.UNIFORM),
            max_items=1,
            max_item_steps=longest,
            payload_bytes=payload_bytes,
        )
        self.rows = StreamRows(_SIGNATURE, num_envs, chunk_length, longest - 1)
        self.items = StreamItems([table], self.rows, window)
        self._has_payload = payload_bytes > 0

    def add(
        self,
        reward: float | Array = 0.0,
        *,
        is_decision: bool | Array = True,
        payload: Array | None = None,
    ) -> list[_Item]:
        """Return the items that one more row of every stream sends."""
        count = len(self.rows.all)
        row: dict[str, Array] = {"reward": np.broadcast_to(np.asarray(reward, np.float32), count)}
        if payload is not None:
            row[PAYLOAD] = payload.view(np.uint8)
            if not self.rows.beside:
                self.rows.keep_beside({PAYLOAD: row[PAYLOAD]}, is_batch=True)
        self.rows.add(row, self.rows.all, np.broadcast_to(np.asarray(is_decision), count))
        full = self.rows.full(self.rows.all)
        return self.send() if len(full) else []

    def send(self) -> list[_Item]:
        """Return the items of the present chunks, which are sent."""
        first_steps, every = self.rows.first_step.copy(), self.rows.all
        batches = self.items.batches(every)
        self.items.sent(every)
        self.rows.advance(every, continues=True)
        return [item for batch in batches for item in _items(batch, first_steps)]


def _items(batch: ItemBatch, first_steps: NDArray[np.int64]) -> list[_Item]:
    last_rows = first_steps[batch.chunk_indices] + batch.last_offsets
    payloads = batch.payloads or (b"",) * len(last_rows)
    columns = (batch.chunk_indices, last_rows, batch.lengths, batch.priorities)
    rows = zip(*(each.tolist() for each in columns), payloads, strict=True)
    return [_Item._make(row) for row in rows]


def test_window_is_complete_with_its_bootstrap_row() -> None:
    """With 3 steps the window of step 0 comes with row 3, and each later row completes one."""
    streams = _Streams(_window(history=0, steps=3), num_envs=2)
    assert [len(streams.add()) for _ in range(6)] == [0, 0, 0, 2, 2, 2]


def test_history_is_shorter_only_at_the_start_of_a_stream() -> None:
    """A stack of 4 over 1 step covers 2, 3, 4 and then always 5 steps."""
    streams = _Streams(_window(history=3, steps=1))
    assert [[item.length for item in streams.add()] for _ in range(7)] == [[], [2], [3], [4], [5], [5], [5]]


@pytest.mark.parametrize("keep_all", [False, True])
def test_stream_that_restarts_has_no_item_of_what_is_lost(keep_all: bool) -> None:
    """The server lost the first chunk: items need their whole history, unless all are to be kept."""
    streams = _Streams(_window(history=3, steps=1, keep_all=keep_all), chunk_length=4)
    for step in range(7):
        streams.add(float(step))
    streams.rows.first_step[:] = 0  # as `ReplayWriter` does before it sends the chunk again
    items = streams.add(7.0)
    expected = [(1, 2, 4.0), (2, 3, 5.0), (3, 4, 6.0)] if keep_all else []
    assert [(item.last_row, item.length, item.priority) for item in items] == expected
    assert streams.items.dropped == 4 - len(expected)
    assert [len(streams.add()) for _ in range(4)] == [0, 0, 0, 4]


def test_no_window_starts_at_a_row_that_is_no_decision() -> None:
    """The row whose action was ignored is never an action step, but windows before it cover it."""
    decisions = (True, True, False, True, True, True)
    streams = _Streams(_window(history=0, steps=2))
    counts = [len(streams.add(is_decision=is_decision)) for is_decision in decisions]
    assert counts == [0, 0, 1, 1, 0, 1]  # starts at 0, 1, (2 is final), 3
    streams = _Streams(_window(history=0, steps=2, keep_all=True))
    assert [len(streams.add(is_decision=is_decision)) for is_decision in decisions] == [0, 0, 1, 1, 1, 1]


def test_priority_is_asked_of_the_rows_of_its_window() -> None:
    """The oldest step handed over is the step the window starts at; a number is that of all."""
    streams = _Streams(_window(history=0, steps=2))
    priorities = [[item.priority for item in streams.add(float(t))] for t in range(5)]
    assert priorities == [[], [], [0.0], [1.0], [2.0]]
    alike = _Streams(_window(history=0, steps=2, priority=7.0))
    assert [[item.priority for item in alike.add(float(t))] for t in range(4)] == [[], [], [7.0], [7.0]]


def test_priority_is_given_all_steps_of_its_windows_in_order() -> None:
    """Of every environment: from the step a window starts at to the one it bootstraps from; by name, and only asked."""
    asked: list[list[float]] = []

    def keep(steps: Mapping[str, Array]) -> Array:
        assert list(steps) == ["reward"]
        assert "observation" not in steps
        asked.extend(steps["reward"].T.tolist())
        return np.ones(steps["reward"].shape[1])

    streams = _Streams(_window(history=1, steps=2, priority=keep), num_envs=2, chunk_length=3)
    for t in range(6):
        streams.add(np.array([t, 10 * t], np.float32))
    assert asked == [
        [0, 1, 2], [0, 10, 20],
        [1, 2, 3], [10, 20, 30], [2, 3, 4], [20, 30, 40], [3, 4, 5], [30, 40, 50],
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (4, 1)])
def test_priority_that_is_not_one_for_each_window_is_refused(shape: tuple[int, ...]) -> None:
    """A single number was that of every window of a message; other shapes ended in an error of NumPy."""
    streams = _Streams(_window(history=0, steps=2, priority=lambda _: np.ones(shape)), num_envs=2, chunk_length=4)
    for _ in range(3):
        streams.add()
    with pytest.raises(InvalidArgument, match=naming("table 't'", shape, "(4,)")):
        streams.add()


def test_stride_keeps_every_nth_start() -> None:
    """With a stride of 2, windows start at steps 0, 2, 4."""
    streams = _Streams(_window(history=0, steps=4, stride=2))
    starts, complete = [], []
    for t in range(10):
        if streams.items.starts_window:
            starts.append(t)
        if streams.add():
            complete.append(t)
    assert (starts, complete) == ([0, 2, 4, 6, 8], [4, 6, 8])


def test_window_carries_the_payload_of_its_start() -> None:
    """With a stride of 2 and windows of 4 steps behind a history of 1, rows 4, 6 and 8 complete those of 0, 2 and 4."""
    streams = _Streams(_window(history=1, steps=4, stride=2), num_envs=2, payload_bytes=8)
    payloads = [np.array([[t, 10 * t], [-t, 0]], np.float32) for t in range(9)]
    found = [[item.payload for item in streams.add(payload=payload)] for payload in payloads]
    assert [each for each in found if each] == [[row.tobytes() for row in payloads[t]] for t in (0, 2, 4)]


@given(
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 7),
    st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_windows_equal_those_of_a_slow_model(
    history: int, steps: int, stride: int, chunk: int, decisions: list[bool]
) -> None:
    """For any rows and chunks the items are exactly the windows that a look at the whole stream gives."""
    streams = _Streams(_window(history, steps, stride), chunk_length=chunk, payload_bytes=4)
    named = []
    for t, is_decision in enumerate(decisions):
        named += streams.add(float(t), is_decision=is_decision, payload=np.full((1, 1), t, np.float32))
    if streams.rows.filled[0]:
        named += streams.send()
    expected = [
        _Item(0, start + steps, min(history, start) + steps + 1, float(start), np.float32(start).tobytes())
        for start in range(0, len(decisions) - steps, stride)
        if decisions[start]
    ]
    assert named == expected


@pytest.mark.parametrize("history", [0, 3])
def test_environments_are_judged_each_by_its_own_rows(history: int) -> None:
    """One environment's final observation step does not cost another its window."""
    streams = _Streams(_window(history, steps=1), num_envs=2)
    streams.add()
    assert [item.env for item in streams.add(is_decision=np.array([False, True]))] == [0, 1]
    assert [item.env for item in streams.add()] == [1]
