"""The stream writer: what it sends equals what was put in, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tidemill.replay.writing.appender import StreamAppender, StreamRestarted
from tidemill.replay.writing.chunk import SMALLEST_PRIORITY, Chunk, ItemBatch
from tidemill.replay.writing.rollout_writer import RolloutWriter
from tidemill.types import Codec, ColumnSpec, WindowSpec

_SIGNATURE = (
    ColumnSpec("observation", "uint8", (2,), Codec.RAW),
    ColumnSpec("action", "int64", ()),
    ColumnSpec("reward", "float32", ()),
    ColumnSpec("terminated", "bool", ()),
    ColumnSpec("truncated", "bool", ()),
    ColumnSpec("is_first", "bool", ()),
)
_ENVS = 3
_CHUNK = 4


class _Sink:
    """Stands in for the appender: keeps what it is given, or reports lost streams."""

    def __init__(self) -> None:
        self.sent: list[tuple[Sequence[Chunk], Sequence[ItemBatch]]] = []
        self.fails = False
        self.env_steps = 0

    def append(self, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> bool:
        if self.fails:
            self.fails = False
            raise StreamRestarted("restarted")
        self.sent.append((chunks, items))
        return True


def _writer(sink: _Sink, window: WindowSpec) -> RolloutWriter:
    def initial_priority(steps: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        windows = steps["reward"].shape[1] // _ENVS
        return np.tile(np.arange(1, _ENVS + 1, dtype=np.float32), windows)

    return RolloutWriter(cast(StreamAppender, sink), _SIGNATURE, window, _ENVS, _CHUNK, initial_priority)


def _add(
    writer: RolloutWriter,
    step: int,
    is_reset_step: Sequence[bool] = (False,) * _ENVS,
    priority_inputs: Mapping[str, NDArray[np.generic]] | None = None,
) -> None:
    envs = np.arange(_ENVS)
    row: dict[str, NDArray[np.generic]] = {
        "observation": np.stack([envs, np.full(_ENVS, step)], axis=1).astype(np.uint8),
        "action": envs * 100 + step,
        "reward": (envs + step / 10).astype(np.float32),
        "terminated": np.zeros(_ENVS, np.bool_),
        "truncated": np.zeros(_ENVS, np.bool_),
        "is_first": np.full(_ENVS, step == 0),
    }
    writer.add(row, priority_inputs or {}, np.array(is_reset_step), params_version=step + 1)


def test_full_chunks_of_all_streams_leave_in_one_call() -> None:
    """Nothing is sent before `chunk_length` rows; then one chunk of every environment, in order."""
    sink = _Sink()
    writer = _writer(sink, WindowSpec(0, 1))
    for step in range(_CHUNK - 1):
        _add(writer, step)
    assert not sink.sent
    for step in range(_CHUNK - 1, 2 * _CHUNK):
        _add(writer, step)
    described = [
        [(c.env_index, c.first_step, c.step_count, c.decision_count) for c in chunks] for chunks, _ in sink.sent
    ]
    assert described == [[(e, first, 4, 4) for e in range(_ENVS)] for first in (0, 4)]
    assert [c.params_version for c in sink.sent[1][0]] == [8] * _ENVS


def test_blocks_hold_each_stream_s_own_rows() -> None:
    """A chunk's blocks are the bytes of its environment's rows, in signature order."""
    sink = _Sink()
    writer = _writer(sink, WindowSpec(0, 1))
    for step in range(_CHUNK):
        _add(writer, step)
    for chunk in sink.sent[0][0]:
        observation, action, reward = chunk.blocks[:3]
        e = chunk.env_index
        assert np.frombuffer(observation, np.uint8).tolist() == [v for t in range(4) for v in (e, t)]
        assert np.frombuffer(action, np.int64).tolist() == [e * 100 + t for t in range(4)]
        assert np.frombuffer(reward, np.float32).tolist() == pytest.approx([e + t / 10 for t in range(4)])


def test_items_travel_with_the_chunk_their_last_step_is_in() -> None:
    """With windows of 2 steps, chunk 0 carries the starts 0 and 1, chunk 1 the starts 2 to 5."""
    sink = _Sink()
    writer = _writer(sink, WindowSpec(0, 2))
    for step in range(2 * _CHUNK):
        _add(writer, step)
    ends = [
        sorted(zip(items.chunk_indices.tolist(), items.last_offsets.tolist(), strict=True)) for _, (items,) in sink.sent
    ]
    assert ends == [
        [(e, o) for e in range(_ENVS) for o in (2, 3)],
        [(e, o) for e in range(_ENVS) for o in range(4)],
    ]
    items = sink.sent[1][1][0]
    assert set(items.lengths.tolist()) == {3}
    assert dict(zip(items.chunk_indices.tolist(), items.priorities.tolist(), strict=True)) == {
        0: 1.0 + SMALLEST_PRIORITY,
        1: 2.0 + SMALLEST_PRIORITY,
        2: 3.0 + SMALLEST_PRIORITY,
    }


def test_writer_asks_for_no_priorities_that_nobody_looks_at() -> None:
    """Without `initial_priority` all items are alike, whatever the policy hands over for them."""
    sink = _Sink()
    writer = RolloutWriter(cast(StreamAppender, sink), _SIGNATURE, WindowSpec(0, 1), _ENVS, _CHUNK, None)
    for step in range(_CHUNK):
        _add(writer, step, priority_inputs={"chosen": np.full(_ENVS, np.nan)})
    assert sink.sent[0][1][0].priorities.tolist() == [1.0 + SMALLEST_PRIORITY] * 9


def test_reset_ticks_are_no_decisions_and_start_no_window() -> None:
    """A final observation step is stored but neither counted as a decision nor made the start of an item."""
    sink = _Sink()
    writer = _writer(sink, WindowSpec(0, 1))
    for step in range(_CHUNK):
        _add(writer, step, is_reset_step=(step == 1, False, False))
    chunks, (items,) = sink.sent[0]
    assert [c.decision_count for c in chunks] == [3, 4, 4]
    assert np.bincount(items.chunk_indices).tolist() == [2, 3, 3]


def test_lost_streams_start_anew_at_step_0() -> None:
    """After a restart of the streams the next chunk is step 0, and no window reaches back before it."""
    sink = _Sink()
    writer = _writer(sink, WindowSpec(history=1, steps=1))
    for step in range(_CHUNK - 1):
        _add(writer, step)
    sink.fails = True
    _add(writer, _CHUNK - 1)
    assert not sink.sent
    for step in range(_CHUNK, 2 * _CHUNK):
        _add(writer, step)
    chunks, (items,) = sink.sent[0]
    assert [c.first_step for c in chunks] == [0] * _ENVS
    # step 0 of the new streams is in the middle of an episode: the first window starts at step 1
    assert sorted(set(items.last_offsets.tolist())) == [2, 3]
    assert set(items.lengths.tolist()) == {3}
