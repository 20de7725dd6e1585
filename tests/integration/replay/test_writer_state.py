"""A writer whose process is gone continues in another: the same streams, no step lost or twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_log import kill, options
from tests.support.replay_service import LocalServer, local_server, server_process
from tests.support.waiting import WAIT_S
from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    export_table,
    signature_like,
)
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.writing import state as writer_state
from tidemill.types import ColumnSpec

_TABLE = TableConfig(
    "t", signature_like({"number": 0}), SelectorConfig(SelectorKind.UNIFORM), max_items=1000, max_item_steps=4
)
_STEPS = 40


def _writer(address: str, **settings: Any) -> ReplayWriter:  # noqa: ANN401 - arguments of a writer
    return ReplayWriter(address, _TABLE, num_envs=2, windows=ItemWindow(3), **settings)


def _write(writer: ReplayWriter, steps: range, flushed: tuple[int, ...]) -> None:
    """Write steps of two environments; episodes of the second end at every 15th step."""
    for step in steps:
        writer.append({"number": np.array([step, 1000 + step])})
        if step % 4 == 0:
            writer.create_item("t", last=min(2, writer.episode_steps(1)), env=1)
        if step % 15 == 14:
            writer.end_episode([1])
        if step in flushed:
            writer.flush(WAIT_S)


def _items(address: str, folder: Path) -> list[list[int]]:
    """Return the steps of every item, sorted."""
    export_table(address, "t", folder)
    exported = ExportedTable(folder)
    numbers = exported.rows(0, exported.steps)["number"]
    pairs = zip(exported.first_rows.tolist(), exported.lengths.tolist(), strict=True)
    return sorted(numbers[first : first + length].tolist() for first, length in pairs)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The items of a writer that was never interrupted."""
    with local_server() as server:
        with _writer(server.address) as writer:
            _write(writer, range(_STEPS), ())
        return _items(server.address, tmp_path_factory.mktemp("expected") / "out")


def test_state_of_an_older_tidemill_has_one_version_for_all(server: LocalServer) -> None:
    """It goes to what the state's chunks send."""
    with closing(_writer(server.address, chunk_length=1)) as writer:
        writer.append({"number": np.array([0, 1000])}, params_version=7)
        document, arrays = writer_state._unpack(writer.state())
    del arrays["params_versions"]
    with _writer(server.address, chunk_length=1, state=writer_state._pack(document, arrays)) as writer:
        for step in range(1, 4):
            writer.append({"number": np.array([step, 1000 + step])}, params_version=8)
    with ReplayDataset(server.address, "t", 64, timeout_s=WAIT_S) as dataset:
        batch = next(dataset)
    assert set(batch.first_versions.tolist()) == {7, 8}


def _lose(writer: ReplayWriter) -> None:
    """End a writer as SIGKILL does: what it has not sent is gone."""
    writer.close()


@pytest.mark.parametrize("saved", [0, 10, 17, 32])
@pytest.mark.parametrize("chunk_length, flushed", [(1, ()), (5, (6, 16, 17, 18, 30)), (16, (9,)), (16, ())], ids=str)
def test_writer_continues_as_if_nothing_had_happened(
    server: LocalServer,
    tmp_path: Path,
    expected: list[list[int]],
    saved: int,
    chunk_length: int,
    flushed: tuple[int, ...],
) -> None:
    """In the middle of a chunk and of an episode; items reach over the restart."""
    first = _writer(server.address, chunk_length=chunk_length)
    _write(first, range(saved), flushed)
    state = first.state()
    _lose(first)
    with _writer(server.address, chunk_length=chunk_length, state=state) as second:
        assert not second.interrupted.any()
        _write(second, range(saved, _STEPS), flushed)
    assert _items(server.address, tmp_path / "out") == expected
    assert server.replay.streams.actors == 1
    assert server.replay.streams.count == 2
    assert server.replay.env_steps == 2 * _STEPS


@pytest.mark.parametrize("flushed", [(), (22, 25)], ids=str)
@pytest.mark.parametrize("lost", [21, 26, 33])
def test_program_that_repeats_itself_stores_each_step_once(
    server: LocalServer, tmp_path: Path, expected: list[list[int]], lost: int, flushed: tuple[int, ...]
) -> None:
    """It had gone on after it saved its state: what it writes again is recognised."""
    first = _writer(server.address, chunk_length=4)
    _write(first, range(20), flushed)
    state = first.state()
    _write(first, range(20, lost), flushed)
    _lose(first)
    with _writer(server.address, chunk_length=4, state=state, replays=True) as second:
        assert not second.interrupted.any()
        _write(second, range(20, _STEPS), flushed)
    assert _items(server.address, tmp_path / "out") == expected
    assert server.replay.env_steps == 2 * _STEPS


def test_program_that_goes_another_way_comes_behind_what_is_stored(server: LocalServer, tmp_path: Path) -> None:
    """What was written after the state was saved stays; what comes next is a new episode."""
    first = _writer(server.address, chunk_length=4)
    _write(first, range(10), ())
    state = first.state()
    _write(first, range(10, 14), ())
    first.flush(WAIT_S)
    _lose(first)
    with _writer(server.address, chunk_length=4, state=state) as second:
        assert second.interrupted.tolist() == [True, True]
        assert second.episode_steps(0) == 0
        _write(second, range(50, 60), ())
    items = _items(server.address, tmp_path / "out")
    assert [item for item in items if len(item) == 3 and item[0] < 1000] == [
        *([first, first + 1, first + 2] for first in range(12)),
        *([first, first + 1, first + 2] for first in range(50, 58)),
    ]
    assert server.replay.env_steps == 2 * 24


def test_unacknowledged_steps_are_in_the_state(tmp_path: Path, expected: list[list[int]]) -> None:
    """Server and writer are killed: what was on the way is sent by the next writer to the next server, once."""
    storage = options(tmp_path / "log")
    with server_process("127.0.0.1:0", *storage) as server:
        address = server.address
        first = _writer(address, chunk_length=2)
        _write(first, range(10), (9,))
        kill(server)
        _write(first, range(10, 25), ())
        assert first.unacknowledged_chunks > 0
        state = first.state()
        _lose(first)
    with server_process("127.0.0.1:0", *storage) as again:
        with _writer(again.address, chunk_length=2, state=state) as second:
            _write(second, range(25, _STEPS), ())
        assert _items(again.address, tmp_path / "out") == expected


def test_streams_begin_again_where_the_server_lost_them(tmp_path: Path) -> None:
    """A server in memory that was restarted knows nothing of the state: the writer says so and continues."""
    with local_server() as server:
        first = _writer(server.address, chunk_length=4)
        _write(first, range(10), (9,))
        state = first.state()
        _lose(first)
    with local_server() as other:
        other.replay.streams.next_epoch = 1000
        with _writer(other.address, chunk_length=4, state=state) as second:
            _write(second, range(10, 20), ())
            assert second.restarts == 1
        assert [10, 11, 12] in _items(other.address, tmp_path / "out")


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("unacknowledged", [0, 8])
def test_streams_begin_again_where_the_server_lost_acknowledged_steps(
    tmp_path: Path, unacknowledged: int, replays: bool
) -> None:
    """As by a power failure: the server knows the streams, but fewer of their steps than the state."""
    with local_server() as server:
        first = _writer(server.address, name="w", chunk_length=4)
        _write(first, range(8), (7,))
    _write(first, range(8, 9 + unacknowledged), ())
    state = first.state()
    assert first.unacknowledged_chunks == 2 * unacknowledged // 4
    _lose(first)
    with local_server() as other:
        with _writer(other.address, name="w", chunk_length=4) as earlier:
            _write(earlier, range(4), ())
        with _writer(other.address, chunk_length=4, state=state, replays=replays) as second:
            assert second.epoch > earlier.epoch == first.epoch
            _write(second, range(30, 40), ())
            assert (second.restarts, second.dropped_chunks) == (1, 2 * unacknowledged // 4)
            with nullcontext() if not unacknowledged else pytest.raises(DataLoss):
                second.flush(WAIT_S)
        items = _items(other.address, tmp_path / "out")
    assert [0, 1, 2] in items
    assert [30, 31, 32] in items


def _remembered(writer: ReplayWriter, steps: range) -> None:
    """Write steps with all that windows can have; every fifth is not a decision."""
    for step in steps:
        number = np.array([step, 1000 + step])
        writer.append(
            {"number": number},
            is_decision=np.array([step % 5 != 3, True]),
            beside={"q": number / 4},
            payload=number.astype(np.int32),
        )


@pytest.mark.parametrize("saved", [1, 9, 12, 22])
def test_windows_with_priorities_and_payloads_continue(server: LocalServer, tmp_path: Path, saved: int) -> None:
    """Across episodes: what was given beside the steps before the restart counts in items after it."""
    window = ItemWindow(
        length=3,
        stride=2,
        priority=lambda steps: steps["number"][0] + steps["q"][-1],
        history=1,
        across_episodes=True,
    )
    found = []
    for name, ends in (("u", (40,)), ("v", (saved, 40))):
        table = replace(_TABLE, name=name, payload_bytes=4)
        begin, state = 0, None
        for end in ends:
            writer = ReplayWriter(server.address, table, num_envs=2, windows=window, chunk_length=4, state=state)
            _remembered(writer, range(begin, end))
            begin, state = end, writer.state()
            if end == 40:
                writer.flush(WAIT_S)
            writer.close()
        export_table(server.address, name, tmp_path / name)
        exported = ExportedTable(tmp_path / name)
        priorities, payloads, _ = exported.item_values(0, exported.items)
        numbers = exported.rows(0, exported.steps)["number"]
        rows = zip(exported.first_rows.tolist(), exported.lengths.tolist(), strict=True)
        items = [numbers[first : first + length].tolist() for first, length in rows]
        found.append(sorted(zip(items, priorities.tolist(), map(bytes, payloads), strict=True)))
    assert found[0] == found[1]
    assert len(found[0]) == 16 + 19


def test_integers_of_numpy_are_those_of_python(server: LocalServer) -> None:
    """A writer that was given NumPy's has a state, which one that is given Python's continues."""

    def open_writer(integer: Callable[[int], Any], state: bytes | None = None) -> ReplayWriter:
        two, four = integer(2), integer(4)
        columns = (ColumnSpec("number", "int64", (two,)),)
        table = replace(_TABLE, signature=columns, max_item_steps=four, payload_bytes=four)
        window = ItemWindow(two, stride=integer(1), priority=integer(2), history=integer(1))
        return ReplayWriter(server.address, table, num_envs=two, windows=window, chunk_length=four, state=state)

    with closing(open_writer(np.int64)) as first:
        first.append({"number": [[1, 2], [3, 4]]}, payload=np.zeros((2, 1), np.int32))
        state = first.state()
    with open_writer(int, state) as second:
        assert second.episode_steps() == 1


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"chunk_length": 5}, "chunk_length 5 4 state"),
        ({"num_envs": 3}, "num_envs 3 2"),
        ({"name": "another"}, "name 'another'"),
        ({"windows": None}, "windows {}"),
    ],
)
def test_state_of_another_writer_is_refused(server: LocalServer, changes: dict[str, Any], said: str) -> None:
    """By the argument that differs, before anything is sent."""
    arguments: dict[str, Any] = {"num_envs": 2, "windows": ItemWindow(3), "chunk_length": 4}
    with ReplayWriter(server.address, _TABLE, **arguments) as first:
        state = first.state()
    with pytest.raises(InvalidArgument, match=naming(said)):
        ReplayWriter(server.address, _TABLE, **(arguments | changes), state=state)


@pytest.mark.parametrize(
    "damage,error,said",
    [
        (lambda state: b"something else", InvalidArgument, "ReplayWriter.state"),
        (lambda state: state[:-1], DataLoss, "checksum"),
        (lambda state: state[:-1] + bytes([state[-1] ^ 1]), DataLoss, "checksum"),
    ],
)
def test_damaged_state_is_refused(
    server: LocalServer, client: ReplayClient, damage: Callable[[bytes], bytes], error: type[Exception], said: str
) -> None:
    """Before anything is sent."""
    with _writer(server.address) as first:
        state = first.state()
    with pytest.raises(error, match=naming(said)):
        _writer(server.address, state=damage(state))
    assert client.describe_table("t").items == 0
