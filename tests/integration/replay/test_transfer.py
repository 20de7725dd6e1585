"""Tables to folders of files and back: bit-equal, of one moment, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.replay_log import RANKED, everything, kill, load, options
from tests.support.replay_service import LocalServer, local_server, open_appender, server_process, write
from tests.support.replay_streams import FIFO, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.codec import decode, encode
from tidemill.errors import AlreadyExists, DataLoss, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from tidemill.replay import export_table, import_table
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig, TableUpdate
from tidemill.replay.transfer import folder as files
from tidemill.replay.transfer.folder import ExportedTable
from tidemill.replay.transfer.stream import Start, open_export
from tidemill.replay.writing.appender import StreamAppender
from tidemill.replay.writing.chunk import Chunk, ItemBatch
from tidemill.services.replay.__main__ import main
from tidemill.services.replay.export import TableExport
from tidemill.services.replay.memory import MAX_HOLDERS
from tidemill.types import Codec, ColumnSpec

_TABLE = make_config()
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
    """Return every item of a FIFO table, in order of insertion: sampled, but for the priorities."""
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


def _fill(address: str, table: TableConfig = _TABLE, steps: int = 40) -> None:
    """Create a table and write an item of one step at each of some steps."""
    with ReplayClient(address) as client, open_appender(address) as appender:
        client.create_table(table)
        write(appender, range(steps))
        assert appender.flush(WAIT_S)


def _steps_of(folder: Path) -> list[int]:
    """Return the number of the step of each item of an exported table, oldest first."""
    exported = ExportedTable(folder)
    steps = exported.rows(0, exported.steps)["step"]
    return steps[exported.first_rows].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "wanted,expected",
    [
        ({}, range(40)),
        ({"newest": 3}, range(37, 40)),
        ({"newest": 100}, range(40)),
        ({"min_age": 10}, range(30)),
        ({"max_age": 4}, range(35, 40)),
        ({"min_age": 10, "max_age": 12, "newest": 2}, range(28, 30)),
        ({"min_age": 40}, range(0)),
    ],
)
def test_range_of_items_is_exported(
    server: LocalServer, tmp_path: Path, wanted: dict[str, Any], expected: range
) -> None:
    """The newest, or those of some ages, oldest first; and only the steps that these need."""
    _fill(server.address)
    report = export_table(server.address, "t", tmp_path / "out", **wanted)
    assert _steps_of(tmp_path / "out") == list(expected)
    assert report.items == len(expected)
    assert report.steps <= len(expected) + 6  # chunks of four, whole


def test_files_are_read_without_tidemill(server: LocalServer, tmp_path: Path) -> None:
    """An item is rows `first_row` .. of the columns, which are plain arrays."""
    from safetensors.numpy import load_file

    _fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    steps, items = (load_file(tmp_path / "out" / f"{kind}-000000.safetensors") for kind in ("steps", "items"))
    row = int(items["first_row"][7])
    assert int(items["length"][7]) == 1
    assert steps["frame"][row].tolist() == [7, 49, 0]


def test_export_is_of_one_moment_while_a_writer_goes_on(
    server: LocalServer, client: ReplayClient, tmp_path: Path
) -> None:
    """What was there when it began is exported, though all of it was evicted before it was read."""
    _fill(server.address, replace(make_config(), max_items=40))
    with open_export(server.address, "t") as parts:
        start = next(parts)
        assert isinstance(start, Start)
        assert start.items == 40
        with open_appender(server.address, "another") as appender:
            write(appender, range(60))
            assert appender.flush(WAIT_S)
        rest = list(parts)
    columns = [part.columns["step"] for part in rest if hasattr(part, "columns")]
    assert np.concatenate(columns).tolist() == list(range(40))
    wait_until(lambda: not server.replay.memory.held, "the export to end")
    assert server.replay.chunks <= 10 + 2 * 2  # those of the newer items, and the newest of both streams


def test_exports_under_way_have_a_bound() -> None:
    """Callers that read no further hold chunks for so many, and no more; one that ends makes room."""
    with local_server() as server, ExitStack() as others:
        _fill(server.address)
        for _ in range(MAX_HOLDERS):
            others.enter_context(server.replay.memory.holding(lambda: TableExport(server.replay.find("t"))))
        with (
            pytest.raises(ResourceExhausted, match="4 exports are under way"),
            open_export(server.address, "t") as refused,
        ):
            next(refused)
        others.close()
        assert not server.replay.memory.held
        with open_export(server.address, "t") as parts:
            assert isinstance(next(parts), Start)


def test_export_gives_way_where_memory_is_needed(tmp_path: Path) -> None:
    """What it holds is let go of before a table gives up more than it must; the caller is told."""
    with local_server(stored_limit=40_000) as server:
        _fill(server.address, replace(make_config(), max_items=10_000), steps=100)
        with server.replay.memory.holding(lambda: TableExport(server.replay.find("t"))) as held:  # for a slow caller
            with open_appender(server.address, "another") as appender:
                write(appender, range(800))
                assert appender.flush(WAIT_S)
            table = server.replay.find("t")
            assert table.counters.evictions > 0
            assert table.size > 100
            assert not held.holds
    with pytest.raises(ResourceExhausted, match="export fewer items"):
        held._check()  # what the next part would have raised


def test_undecodable_chunk_costs_its_items(server: LocalServer, client: ReplayClient, tmp_path: Path) -> None:
    """A server opens no columns: what a broken writer sent is found by the client that exports."""
    client.create_table(make_config())
    with open_appender(server.address) as appender:
        for first in (0, 4, 8):
            chunk = make_chunk(0, 0, first, 4)
            if first == 4:
                chunk = replace(chunk, blocks=(b"\xff" * 20, *chunk.blocks[1:]))
            items = make_items(0, [(0, 0, 1), (0, 3, 2)])
            assert appender.append([chunk], [items], WAIT_S)
        assert appender.flush(WAIT_S)
    report = export_table(server.address, "t", tmp_path / "out")
    assert (report.items, report.lost_items) == (4, 2)
    assert _steps_of(tmp_path / "out") == [0, 2, 8, 10]


def test_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A server that goes away in the middle, and a folder that exists, leave nothing behind."""
    with local_server() as server:
        _fill(server.address)
        (tmp_path / "taken").mkdir()
        with pytest.raises(InvalidArgument, match="taken, which exists"):
            export_table(server.address, "t", tmp_path / "taken")
        with pytest.raises(NotFound, match="no table 'nowhere'"):
            export_table(server.address, "nowhere", tmp_path / "out")
        with pytest.raises(InvalidArgument, match="newest is 0, must be at least 1"):
            export_table(server.address, "t", tmp_path / "out", newest=0)
        with pytest.raises(InvalidArgument, match=r"max_age is 3, must be at least min_age \(4\)"):
            export_table(server.address, "t", tmp_path / "out", min_age=4, max_age=3)
    with pytest.raises(Unavailable):
        export_table(server.address, "t", tmp_path / "out", timeout_s=2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def _damaged(folder: Path, how: str) -> None:
    steps, manifest = folder / "steps-000000.safetensors", folder / "manifest.json"
    document = json.loads(manifest.read_text())
    if how == "flipped":
        data = bytearray(steps.read_bytes())
        data[-1] ^= 1
        steps.write_bytes(data)
    elif how == "cut":
        steps.write_bytes(steps.read_bytes()[:-1])
    elif how == "missing":
        steps.unlink()
    elif how == "foreign":
        manifest.write_text('{"format": "something else"}')
    elif how == "no manifest":
        manifest.unlink()
    elif how == "no json":
        manifest.write_bytes(b"\xff\x00")
    else:
        changes: dict[str, Any] = {
            "newer": {"version": 2},
            "edited": {"items": 39},
            "outside": {"files": [document["files"][0] | {"name": "../../steps-000000.safetensors"}]},
        }
        document |= changes[how]
        document.pop("sha256")
        digest = files._digest(document) if how != "edited" else "0"
        manifest.write_text(json.dumps(document | {"sha256": digest}))


@pytest.mark.parametrize(
    "how,error,said",
    [
        ("flipped", DataLoss, r"steps-000000.safetensors is damaged: its bytes do not match their SHA-256"),
        ("cut", DataLoss, r"is damaged: it has \d+ bytes, must have \d+"),
        ("missing", DataLoss, "steps-000000.safetensors is missing"),
        ("foreign", InvalidArgument, "is no manifest of an exported table"),
        ("no manifest", InvalidArgument, "has no manifest.json: give a folder that `tidemill replay export` wrote"),
        ("no json", DataLoss, "manifest.json is damaged"),
        ("newer", InvalidArgument, "has version 2, this release reads 1"),
        ("edited", DataLoss, "does not match its checksum"),
        ("outside", DataLoss, "names a file '../../steps-000000.safetensors', must match"),
    ],
)
def test_damaged_or_foreign_folder_is_refused(
    server: LocalServer, client: ReplayClient, tmp_path: Path, how: str, error: type[Exception], said: str
) -> None:
    """By name, and before anything is stored."""
    with local_server() as source:
        _fill(source.address)
        export_table(source.address, "t", tmp_path / "out")
    _damaged(tmp_path / "out", how)
    with pytest.raises(error, match=said):
        import_table(server.address, tmp_path / "out")
    assert client.list_tables() == ()


def test_items_that_fit_no_table_are_refused(tmp_path: Path) -> None:
    """Files with right checksums whose numbers cannot be: beyond the rows, or across two streams."""
    with local_server() as source:
        _fill(source.address)
        export_table(source.address, "t", tmp_path / "out")
    exported = ExportedTable(tmp_path / "out")
    for first, length in ((39, 2), (0, 6), (-1, 1), (0, 0)):
        exported.first_rows[3], exported.lengths[3] = first, length
        with pytest.raises(DataLoss, match=f"item 3 has {length} steps from row {first}, must have 1 .. 5"):
            exported._check_items()
    exported.continues[5] = False
    exported.first_rows[3], exported.lengths[3] = 19, 2
    with pytest.raises(DataLoss, match="of one stream"):
        exported._check_items()


def test_import_beside_what_is_there(server: LocalServer, client: ReplayClient, tmp_path: Path) -> None:
    """Behind the items of an equal table, as its limiter allows; under another name; never into another table."""
    _fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    assert import_table(server.address, tmp_path / "out").table == "t"
    assert client.describe_table("t").items == 80
    assert import_table(server.address, tmp_path / "out", table="copy").table == "copy"
    assert client.describe_table("copy").items == 40
    client.create_table(replace(make_config("other"), max_items=50))
    with pytest.raises(AlreadyExists, match="max_items"):
        import_table(server.address, tmp_path / "out", table="other")
    client.update_table("copy", TableUpdate(queue_size=40))
    with pytest.raises(Unavailable, match="rate limiter holds inserts back"):
        import_table(server.address, tmp_path / "out", table="copy", timeout_s=1.0)


def test_failed_import_leaves_its_table_empty(
    server: LocalServer, client: ReplayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a table is not left where a learner may take it for the whole."""
    _fill(server.address)
    export_table(server.address, "t", tmp_path / "out")
    monkeypatch.setattr(ExportedTable, "priorities_and_payloads", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        import_table(server.address, tmp_path / "out", table="copy")
    described = client.describe_table("copy")
    assert (described.items, described.rate_limiter_off) == (0, False)


def test_many_files_and_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold a few steps or items each, parts of a few chunks: the same table."""
    from tidemill.replay.transfer import plan
    from tidemill.services.replay import export

    monkeypatch.setattr(files, "FILE_BYTES", 400)
    monkeypatch.setattr(files, "_MAX_OPEN", 2)
    monkeypatch.setattr(export, "_PART_BYTES", 300)
    monkeypatch.setattr(export, "_PART_ITEMS", 7)
    monkeypatch.setattr(plan, "_MESSAGE_ITEMS", 5)
    with local_server() as one, local_server() as other:
        _fill(one.address, make_config(sampler=SelectorConfig(SelectorKind.FIFO)), 90)
        export_table(one.address, "t", tmp_path / "out")
        assert len(list((tmp_path / "out").glob("steps-*"))) > 5
        assert len(list((tmp_path / "out").glob("items-*"))) > 5
        import_table(other.address, tmp_path / "out")
        export_table(other.address, "t", tmp_path / "again")
    assert _steps_of(tmp_path / "again") == list(range(90))


def test_commands_move_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` and `import` of `tidemill replay`, and what they say."""
    out = str(tmp_path / "out")
    with local_server() as one, local_server() as other:
        _fill(one.address)
        assert main(["export", one.address, "t", "--out", out, "--newest", "10"]) == 0
        assert "exported 10 items of t, 12 steps" in capsys.readouterr().out
        assert main(["import", other.address, out, "--table", "part"]) == 0
        assert "imported 10 items of part, 12 steps" in capsys.readouterr().out
        assert main(["export", one.address, "t", "--out", out]) != 0
        assert "which exists" in capsys.readouterr().err


def test_tables_are_copied_while_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a server that writers go on with to one that is killed afterwards: a moment of each stream.

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
        assert sum(writers.written) > before  # they went on
        assert "copied" in capsys.readouterr().out
        assert main(["copy", source.address, target.address]) != 0
        assert "tables ['t'] are at" in capsys.readouterr().err
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
