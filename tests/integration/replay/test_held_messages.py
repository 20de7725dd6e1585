"""A writer that holds its messages: what they have, byte by byte, and that they are stored once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tests.support.replay_service import LocalServer, local_server
from tidemill.errors import DataLoss, FailedPrecondition, InvalidArgument
from tidemill.replay import ItemWindow, ReplayWriter, SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.types import Codec, ColumnSpec

_SIGNATURE = (
    ColumnSpec("observation", "uint8", (2,), Codec.RAW),
    ColumnSpec("action", "int64", ()),
    ColumnSpec("reward", "float32", ()),
)
_TABLE = TableConfig("t", _SIGNATURE, SelectorConfig(SelectorKind.UNIFORM), max_items=1000, max_item_steps=4)
_ENVS, _CHUNK = 3, 4


def _sum(steps: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the reward of a window's first step and `q` of its last one."""
    found: NDArray[Any] = steps["reward"][0] + steps["q"][-1]
    return found


def _window(length: int, **settings: Any) -> ItemWindow:  # noqa: ANN401 - settings of a window
    return ItemWindow(length, across_episodes=True, **settings)


def _writer(address: str, windows: ItemWindow, table: TableConfig = _TABLE, **settings: Any) -> ReplayWriter:  # noqa: ANN401
    given: dict[str, Any] = {"num_envs": _ENVS, "chunk_length": _CHUNK, "name": "a", "hold": True} | settings
    return ReplayWriter(address, table, windows=windows, **given)


def _append(writer: ReplayWriter, step: int, **settings: Any) -> None:  # noqa: ANN401 - arguments of `append`
    envs = np.arange(_ENVS)
    row = {
        "observation": np.stack([envs, np.full(_ENVS, step)], axis=1).astype(np.uint8),
        "action": envs * 100 + step,
        "reward": (envs + step / 8).astype(np.float32),
    }
    writer.append(row, params_version=step + 1, **settings)
    writer.push()


def _data(message: bytes) -> pb.AppendData:
    return pb.AppendRequest.FromString(message).data


def test_full_chunks_of_all_streams_are_one_message(server: LocalServer) -> None:
    """Nothing before `chunk_length` rows; then one chunk of every environment, in order, each with its own rows."""
    with closing(_writer(server.address, _window(1))) as writer:
        for step in range(2 * _CHUNK - 1):
            _append(writer, step)
            assert len(writer.take_held(0)) == (step == _CHUNK - 1)
        _append(writer, 2 * _CHUNK - 1)
        (message,) = writer.take_held(24)
    data = _data(message)
    assert data.at_step_count == 24
    found = [(c.env_index, c.first_step, c.step_count, c.decision_count, c.params_version) for c in data.chunks]
    assert found == [(env, _CHUNK, _CHUNK, _CHUNK, 2 * _CHUNK) for env in range(_ENVS)]
    steps = range(_CHUNK, 2 * _CHUNK)
    for env, chunk in enumerate(data.chunks):
        observation, action, reward = chunk.columns
        assert np.frombuffer(observation, np.uint8).tolist() == [v for t in steps for v in (env, t)]
        assert np.frombuffer(action, np.int64).tolist() == [env * 100 + t for t in steps]
        assert np.frombuffer(reward, np.float32).tolist() == [env + t / 8 for t in steps]


def test_messages_are_stored_one_after_the_other(server: LocalServer) -> None:
    """Each says how many steps are stored before it."""
    with closing(_writer(server.address, _window(1))) as writer:
        for step in range(2 * _CHUNK):
            _append(writer, step)
        messages = writer.take_held(100)
    assert [_data(message).at_step_count for message in messages] == [100, 100 + _ENVS * _CHUNK]


def test_items_travel_with_the_chunk_their_last_step_is_in(server: LocalServer) -> None:
    """With windows of 3 rows, chunk 0 has the starts 0 and 1, chunk 1 the starts 2 to 5: oldest first."""
    with closing(_writer(server.address, _window(3, priority=_sum))) as writer:
        for step in range(2 * _CHUNK):
            _append(writer, step, beside={"q": np.full(_ENVS, 100.0 * step)})
        first, second = (_data(message).items[0] for message in writer.take_held(0))
    ends = [list(zip(items.last_offsets, items.chunk_indices, strict=True)) for items in (first, second)]
    assert ends == [[(o, e) for o in (2, 3) for e in range(_ENVS)], [(o, e) for o in range(4) for e in range(_ENVS)]]
    assert set(second.lengths) == {3}
    assert list(second.priorities[:4]) == [2 / 8 + 400.0, 1 + 2 / 8 + 400.0, 2 + 2 / 8 + 400.0, 3 / 8 + 500.0]


def test_row_that_is_no_decision_is_not_counted_and_starts_no_item(server: LocalServer) -> None:
    """A final observation step is stored, in its environment alone."""
    with closing(_writer(server.address, _window(2))) as writer:
        for step in range(_CHUNK):
            _append(writer, step, is_decision=np.array([step != 1, True, True]))
        (message,) = writer.take_held(0)
    data = _data(message)
    assert [chunk.decision_count for chunk in data.chunks] == [3, 4, 4]
    assert np.bincount(data.items[0].chunk_indices).tolist() == [2, 3, 3]


def test_items_carry_the_payload_of_their_first_step(server: LocalServer) -> None:
    """Behind the history; every second start."""
    table = TableConfig("p", _SIGNATURE, _TABLE.sampler, max_items=9, max_item_steps=4, payload_bytes=8)
    with closing(_writer(server.address, _window(2, history=1, stride=2), table)) as writer:
        for step in range(_CHUNK):
            _append(writer, step, payload=np.stack([np.arange(_ENVS), np.full(_ENVS, step)], 1).astype(np.float32))
        (message,) = writer.take_held(0)
    items = _data(message).items[0]
    assert list(items.lengths) == [2] * _ENVS + [3] * _ENVS
    expected = [np.array([env, start], np.float32).tobytes() for start in (0, 2) for env in range(_ENVS)]
    assert list(items.payloads) == expected


def test_messages_are_stored_once(server: LocalServer) -> None:
    """By the writer that made them, and again by the next one, which repeats the steps of the same epoch."""
    with closing(_writer(server.address, _window(1))) as first:
        for step in range(_CHUNK):
            _append(first, step)
        kept, epoch = first.take_held(0), first.epoch
        assert server.replay.chunks == 0
        assert first.store(kept)
        with pytest.raises(FailedPrecondition, match=naming("take_held store")):
            first.flush()
        with pytest.raises(FailedPrecondition, match=naming("take_held store")):
            first.state()
    with closing(_writer(server.address, _window(1), epoch=epoch)) as second:
        assert second.epoch == epoch
        for step in range(2 * _CHUNK):
            _append(second, step)
        again, new = second.take_held(0)
        assert again == kept[0]
        assert second.store(kept)
        assert second.store([new])
    assert (server.replay.chunks, server.replay.find("t").size) == (2 * _ENVS, 2 * _ENVS * _CHUNK)


def test_streams_that_the_server_lost_are_an_error() -> None:
    """A writer that repeats an epoch which the server does not know stores nothing."""
    with ExitStack() as stack:
        server = stack.enter_context(local_server())
        server.replay.streams.next_epoch = 1000
        writer = stack.enter_context(closing(_writer(server.address, _window(1), epoch=7)))
        for step in range(_CHUNK):
            _append(writer, step)
        with pytest.raises(DataLoss, match="streams"):
            writer.store(writer.take_held(0))
        assert server.replay.chunks == 0


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"is_decision": np.ones(2, np.bool_)}, "is_decision (2,) (3,)"),
        ({"beside": {"q": np.ones(2)}}, "'q' (2,) (3,)"),
        ({"beside": {"r": np.ones(3)}}, "beside ['r'] ['q']"),
        ({"payload": np.ones(3)}, "payload"),
    ],
)
def test_what_comes_beside_a_step_is_checked(server: LocalServer, arguments: dict[str, Any], says: str) -> None:
    """The step is not taken."""
    with closing(_writer(server.address, _window(2, priority=_sum))) as writer:
        with pytest.raises(InvalidArgument, match=naming("'reward'")):
            _append(writer, 0, beside={"reward": np.ones(3)})
        _append(writer, 0, beside={"q": np.ones(3)})
        with pytest.raises(InvalidArgument, match=naming(says)):
            _append(writer, 1, **({"beside": {"q": np.ones(3)}} | arguments))
        assert writer.episode_steps() == 1


def test_forgotten_columns_beside_a_step_are_named_without_the_payload(server: LocalServer) -> None:
    """The payload is another argument."""
    with closing(_writer(server.address, _window(2, priority=_sum), replace(_TABLE, payload_bytes=4))) as writer:
        memory = np.zeros((_ENVS, 1), np.float32)
        _append(writer, 0, beside={"q": np.ones(3)}, payload=memory)
        with pytest.raises(InvalidArgument, match=re.escape("beside has columns [], must have ['q']")):
            _append(writer, 1, payload=memory)


def test_fractions_beside_a_step_after_whole_numbers_are_refused(server: LocalServer) -> None:
    """Cut off, each error below 1 was a first priority of 0, which is never sampled; a narrower dtype is taken."""
    with closing(_writer(server.address, _window(2, priority=_sum))) as writer:
        _append(writer, 0, beside={"q": np.zeros(_ENVS, np.int64)})
        with pytest.raises(InvalidArgument, match=naming("'q' float64 int64")):
            _append(writer, 1, beside={"q": np.full(_ENVS, 0.75)})
        _append(writer, 1, beside={"q": np.ones(_ENVS, np.uint8)})
        assert writer.episode_steps() == 2
