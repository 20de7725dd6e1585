"""Tables to folders of files and back, and from server to server: bit-equal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.exported import fill, steps_of
from tests.support.replay_log import RANKED, kill, load, options
from tests.support.replay_service import LocalServer, everything, local_server, server_process
from tests.support.replay_streams import FIFO, make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay import copy_tables, export_table, import_table
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode, encode
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig
from tidemill.replay.transfer import folder as files
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.writing.appender import StreamAppender
from tidemill.services.replay.__main__ import main
from tidemill.services.replay.commands import transfer
from tidemill.types import Codec, ColumnSpec

Row = dict[str, bytes]
Item = tuple[list[Row], float, bytes, int]
"""Its rows, priority and payload, and the version of the parameters that chose the last action of its first chunk."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[LocalServer, LocalServer]]:
    """Two servers in memory, for tables of any name."""
    with local_server(max_tables=10_000) as one, local_server(max_tables=10_000) as other:
        yield one, other


_COLUMNS = st.lists(
    st.tuples(
        st.sampled_from(["bool", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"]),
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from(list(Codec)),
    ),
    min_size=1,
    max_size=4,
)
_WRITERS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=_COLUMNS, writers=_WRITERS, payload_bytes=st.sampled_from([0, 5]), seed=st.integers(0, 2**31))
def test_round_trip_is_bit_equal(
    servers: tuple[LocalServer, LocalServer],
    tmp_path: Path,
    columns: list[tuple[str, tuple[int, ...], Codec]],
    writers: list[tuple[int, int]],
    payload_bytes: int,
    seed: int,
) -> None:
    """Whatever several writers wrote, with chunks of different lengths and streams that end anywhere, comes back.

    Rows, windows, priorities and payloads are compared with what the test wrote, in the order it was inserted.
    """
    rng, name = np.random.default_rng(seed), f"t{uuid4().hex}"
    table = TableConfig(
        name,
        tuple(ColumnSpec(f"c{i}", dtype, shape, codec) for i, (dtype, shape, codec) in enumerate(columns)),
        FIFO,
        max_items=10_000,
        max_item_steps=9,
        rate_limiter=RateLimiterConfig(samples_per_insert=1.0, error_buffer=10_000.0),
        max_times_sampled=1,
        payload_bytes=payload_bytes,
    )
    one, other = servers
    with ReplayClient(one.address) as client:
        client.create_table(table)
    written = _written(one.address, table, writers, rng)
    folder = tmp_path / name
    assert export_table(one.address, name, folder).items == len(written)
    assert import_table(other.address, folder).items == len(written)
    assert _read(other, table, len(written)) == written


def _written(address: str, table: TableConfig, writers: list[tuple[int, int]], rng: np.random.Generator) -> list[Item]:
    """Write random streams to a table; return its items in the order of their insertion."""
    written: list[Item] = []
    appenders = [
        StreamAppender(address, f"a{uuid4().hex}", envs, table.signature, (table.name,), length)
        for length, envs in writers
    ]
    rows: list[list[list[Row]]] = [[[] for _ in range(envs)] for _, envs in writers]
    versions: list[list[list[int]]] = [[[] for _ in range(envs)] for _, envs in writers]
    ended: set[tuple[int, int]] = set()
    for _ in range(12):
        w = int(rng.integers(len(writers)))
        length, envs = writers[w]
        chunks, items = [], []
        for env in range(envs):
            if (w, env) in ended or rng.random() < 0.2:
                continue
            steps = length if rng.random() < 0.9 else int(rng.integers(1, length + 1))
            if steps < length:
                ended.add((w, env))
            first = len(rows[w][env])
            arrays, version = _random_rows(table, steps, rng), int(rng.integers(2**40))
            versions[w][env] += [version] * steps
            rows[w][env] += [{n: array[i].tobytes() for n, array in arrays.items()} for i in range(steps)]
            chunks.append(Chunk(env, first, steps, steps, version, encode(table.signature, arrays)))
            for offset in range(steps):
                if rng.random() < 0.7:
                    most = min(table.max_item_steps, first + offset + 1)
                    items.append((len(chunks) - 1, env, offset, int(rng.integers(1, most + 1))))
        if not chunks:
            continue
        items = [items[i] for i in rng.permutation(len(items))]
        priorities = rng.exponential(size=len(items))
        payloads = [rng.bytes(table.payload_bytes) for _ in items]
        places, offsets, lengths = (np.array([item[i] for item in items], np.int64) for i in (0, 2, 3))
        sent = tuple(payloads) if table.payload_bytes else ()
        batch = ItemBatch(0, places, offsets, lengths, priorities, sent)
        assert appenders[w].append(chunks, [batch], WAIT_S)
        assert appenders[w].flush(WAIT_S)
        for (place, env, offset, count), priority, payload in zip(items, priorities.tolist(), payloads, strict=True):
            end = chunks[place].first_step + offset + 1
            written.append((rows[w][env][end - count : end], priority, payload, versions[w][env][end - count]))
    for appender in appenders:
        appender.close()
    return written


def _random_rows(table: TableConfig, steps: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return rows of any bits, NaN of every kind among them."""
    arrays: dict[str, NDArray[Any]] = {}
    for spec in table.signature:
        data = np.frombuffer(rng.bytes(steps * spec.step_bytes), np.uint8)
        array = data & 1 if spec.dtype == "bool" else data
        arrays[spec.name] = np.ascontiguousarray(array).view(spec.dtype).reshape(steps, *spec.shape)
    return arrays


def _read(server: LocalServer, table: TableConfig, count: int) -> list[Item]:
    """Return every item of a FIFO table, in order of insertion: sampled, except the priorities."""
    if not count:
        return []
    found = server.replay.find(table.name)
    assert found.limiter.is_on
    slots = found.items.oldest_first()
    priorities = found.items.priorities[slots].tolist()
    versions = found.store.params_versions(found.items.first_chunks[slots].astype(np.int64)).tolist()
    with ReplaySampler([server.address], table, count, max_in_flight_batches=1) as sampler:
        batch = sampler.take(WAIT_S)
    assert batch is not None
    decoded = decode(table.signature, batch, table.max_item_steps)
    rows = [
        [{n: c[row].tobytes() for n, c in decoded.columns.items()} for row in places[len(places) - length :]]
        for places, length in zip(decoded.index, batch.lengths.tolist(), strict=True)
    ]
    return list(zip(rows, priorities, batch.payloads or (b"",) * count, versions, strict=True))


def test_many_files_and_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold a few steps or items each, parts of a few chunks: the same table."""
    from tidemill.replay.transfer import exported_table, plan
    from tidemill.services.replay import export

    monkeypatch.setattr(files, "FILE_BYTES", 400)
    monkeypatch.setattr(exported_table, "_MAX_OPEN", 2)
    monkeypatch.setattr(export, "_PART_BYTES", 300)
    monkeypatch.setattr(export, "_PART_ITEMS", 7)
    monkeypatch.setattr(plan, "_MESSAGE_ITEMS", 5)
    with local_server() as one, local_server() as other:
        fill(one.address, make_config(sampler=SelectorConfig(SelectorKind.FIFO)), 90)
        export_table(one.address, "t", tmp_path / "out")
        assert len(list((tmp_path / "out").glob("steps-*"))) > 5
        assert len(list((tmp_path / "out").glob("items-*"))) > 5
        import_table(other.address, tmp_path / "out")
        export_table(other.address, "t", tmp_path / "again")
    assert steps_of(tmp_path / "again") == list(range(90))


def test_commands_move_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` and `import` of `tidemill replay`, and what they say."""
    out = str(tmp_path / "out")
    with local_server() as one, local_server() as other:
        fill(one.address)
        assert main(["export", one.address, "t", "--out", out, "--newest", "10"]) == 0
        assert "exported 10 items of t, 12 rows" in capsys.readouterr().out
        assert main(["import", other.address, out, "--table", "part"]) == 0
        said = capsys.readouterr().out
        assert "imported 10 items of part, 12 rows" in said
        assert "the table has 10 items now" in said
        assert main(["export", one.address, "t", "--out", out]) != 0
        assert "which exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, call",
    [
        ("export box:7401 t --out out", "export_table"),
        ("import box:7401 out", "import_table"),
        ("copy box:7401 box2:7401", "copy_tables"),
        ("to-minari box:7401 t walks/random-v0", "export_minari"),
        ("from-minari box:7401 walks/random-v0 t", "import_minari"),
    ],
)
def test_command_that_is_asked_to_stop_undoes_what_it_began(
    command: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGTERM, as of `timeout` or systemd."""
    monkeypatch.setattr(transfer, call, Mock(side_effect=lambda *_, **__: signal.raise_signal(signal.SIGTERM)))
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            main(command.split())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_copy_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of its table is left at the target, where it would be refused."""
    with local_server() as one, local_server() as other:
        fill(one.address)
        with monkeypatch.context() as patch:
            patch.setattr(ExportedTable, "item_values", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                copy_tables(one.address, other.address)
        (report,) = copy_tables(one.address, other.address)
        assert report.table_items == 40


def test_copy_through_a_folder_that_is_missing_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    with local_server() as one, local_server() as other:
        fill(one.address)
        assert main(["copy", one.address, other.address, "--temporary", str(tmp_path / "none")]) != 0
    assert (said := capsys.readouterr().err).count("\n") == 1
    assert f"{tmp_path / 'none'}: No such file or directory" in said


def test_tables_are_copied_while_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a server that writers still use to one that is killed afterwards: a moment of each stream.

    Of each stream the copy has an unbroken range of steps up to some moment, at least what was acknowledged before.
    """
    source_options, target_options = options(tmp_path / "source"), options(tmp_path / "target")
    with (
        server_process("127.0.0.1:0", *source_options) as source,
        server_process("127.0.0.1:0", *target_options) as target,
        ReplayClient(source.address) as client,
        load(source.address, 2) as writers,
    ):
        client.create_table(RANKED)
        wait_until(lambda: writers.acknowledged > 1000, "some steps")
        before = writers.acknowledged
        assert main(["copy", source.address, target.address, "--temporary", str(tmp_path)]) == 0
        assert sum(writers.written) > before  # they continued
        assert "copied" in capsys.readouterr().out
        assert main(["copy", source.address, target.address]) != 0
        assert "tables ['t'] are at" in (said := capsys.readouterr().err)
        assert f"tidemill replay drop {target.address} TABLE" in said
        assert main(["copy", source.address, target.address, "nowhere"]) != 0
        assert "no tables ['nowhere'] at" in capsys.readouterr().err
        assert main(["copy", source.address, source.address]) != 0
        assert "must be two servers" in capsys.readouterr().err
        kill(target)
    with server_process("127.0.0.1:0", *target_options) as again:
        copied = everything(again.address, RANKED)
        with ReplayClient(again.address) as client:
            assert client.create_table(RANKED) is False  # a learner of the fork finds its table
    for stream in (0, 1):
        steps = [step for number, step in copied if number == stream]
        assert steps == list(range(len(steps)))
    assert len(copied) >= before
