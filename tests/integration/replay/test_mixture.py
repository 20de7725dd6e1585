"""Datasets of several tables in fixed fractions, on one server or on several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_service import server_process
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FatalError, InvalidArgument, NotFound
from tidemill.replay import (
    Decoding,
    HostRows,
    ItemRows,
    ItemWindow,
    RateLimiterConfig,
    ReplayBatch,
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    Server,
    TableAt,
    TableConfig,
    signature_like,
)
from tidemill.replay.sampling import sample_call, sample_stream
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards import directory
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shares import split_batch

_BY_PRIORITY = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)
_STEP: dict[str, Any] = {"number": 0, "value": np.float32(0)}


def _table(name: str = "t", step: dict[str, Any] | None = None, **settings: Any) -> TableConfig:  # noqa: ANN401
    defaults: dict[str, Any] = {"sampler": _BY_PRIORITY, "max_items": 1000, "max_item_steps": 1}
    return TableConfig(name, signature_like(step or _STEP), **(defaults | settings))


def _write(addresses: str | Sequence[str], table: TableConfig, numbers: range, **other: Any) -> None:  # noqa: ANN401
    """Write an item for each number, with a priority of 1."""
    with ReplayWriter(addresses, table, windows=ItemWindow(1), name=f"w{numbers.start}") as writer:
        for number in numbers:
            writer.append({"number": number, "value": number / 2, **other})


def _priorities(address: str, name: str = "t") -> int:
    with ReplayClient(address) as client:
        return client.describe_table(name).priority_updates


@pytest.mark.parametrize(
    "size, fractions, sizes",
    [
        (8, [0.5, 0.5], [4, 4]),
        (7, [0.5, 0.5], [4, 3]),
        (256, [0.75, 0.2, 0.05], [192, 51, 13]),
        (5, [0.2] * 5, [1] * 5),
    ],
)
def test_fractions_are_rounded_so_that_the_sum_is_exact(size: int, fractions: list[float], sizes: list[int]) -> None:
    """No table is off by an item or more, and a share of an item or more is never rounded to none."""
    assert split_batch(size, fractions) == sizes
    assert sum(sizes) == size
    assert all(abs(size * fraction - items) < 1 for fraction, items in zip(fractions, sizes, strict=True))


def test_tables_of_the_same_name_on_two_servers(servers: list[Server]) -> None:
    """Every batch has the fractions exactly, says where each item is from, and priorities find their own table."""
    first, second = servers[0].address, servers[1].address
    _write(first, _table(), range(10))
    _write(second, _table(), range(100, 110))
    seen: set[int] = set()
    fractions: dict[TableConfig | TableAt, float] = {_table(): 0.25, TableAt("t", second): 0.75}
    with ReplayDataset(first, fractions, 16, timeout_s=WAIT_S) as dataset:
        for count in range(1, 6):
            batch = next(dataset)
            assert batch.tables.tolist() == [0] * 4 + [1] * 12
            numbers = batch["number"][:, 0]
            assert ((numbers >= 100) == (batch.tables == 1)).all()
            seen |= set(numbers.tolist())
            dataset.update_priorities(batch, np.where(batch.tables == 0, 0.0, 5.0))
            assert (_priorities(first), _priorities(second)) == (4 * count, 12 * count)
    with ReplayDataset(second, "t", 64, timeout_s=WAIT_S, item_counts=True) as dataset:
        priorities = next(dataset).priorities
        assert priorities is not None
        assert set(priorities.tolist()) <= {1.0, 5.0}
    assert seen > set(range(105, 110)) or len(seen) > 10


def test_table_over_several_servers_beside_one_of_a_single_server(servers: list[Server]) -> None:
    """Keys have the form of the larger one, and each priority is delivered."""
    pair, alone = [server.address for server in servers[:2]], servers[2].address
    for start in (0, 10, 20, 30):
        _write(pair, _table(), range(start, start + 10))
    _write(alone, _table("demonstrations"), range(100, 110))
    fractions: dict[str | TableAt, float] = {"t": 0.5, TableAt("demonstrations", alone): 0.5}
    with ReplayDataset(pair, fractions, 8, timeout_s=WAIT_S) as dataset:
        batch = next(dataset)
        assert batch.keys.shape == (8, 2)
        assert batch["number"][4:, 0].min() >= 100
        dataset.update_priorities(batch, [2.0] * 8)
        assert _priorities(alone, "demonstrations") == 4
        wait_until(lambda: sum(map(_priorities, pair)) == 4, "the priorities of both servers")
    other: dict[str | TableAt, float] = {"demonstrations": 0.5, TableAt("t", tuple(pair)): 0.5}
    with ReplayDataset(alone, other, 8, timeout_s=WAIT_S) as dataset:
        dataset.update_priorities(next(dataset), [3.0] * 8)
        assert _priorities(alone, "demonstrations") == 8


def test_weights_are_divided_by_the_largest_of_the_whole_batch(servers: list[Server]) -> None:
    """Each item weighs by its probability in its own table; a uniform table weighs 1 before the division."""
    address = servers[0].address
    uniform = _table("even", sampler=SelectorConfig(SelectorKind.UNIFORM))
    _write(address, uniform, range(10))
    with ReplayWriter(address, _table()) as writer:
        for number, priority in enumerate((1.0, 3.0)):
            writer.append({"number": number, "value": 0})
            writer.create_item("t", last=1, priority=priority)
    with ReplayDataset(address, {_table(): 0.5, uniform: 0.5}, 64, timeout_s=WAIT_S, beta=1.0) as dataset:
        batch = next(dataset)
    expected = np.where(batch.tables == 1, 1.0, np.where(batch["number"][:, 0] == 0, 2.0, 2 / 3)) / 2
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
    assert batch.largest_weight == pytest.approx(2.0)


_WIDE: dict[str, Any] = {"value": np.float64(0), "note": np.zeros(3), "number": 0}


@pytest.mark.parametrize("keep", [None, HostRows(1)], ids=["", "mirror"])
@pytest.mark.parametrize("lengths", [{}, {"note": 3}], ids=["fixed", "ragged"])
def test_wider_and_further_columns_are_cast_and_left_out(
    servers: list[Server], lengths: dict[str, int], keep: HostRows | None
) -> None:
    """A table with float64 in place of float32, in another order and with more columns, gives those of the first."""
    address = servers[0].address
    wide = replace(_table("wide"), signature=signature_like(_WIDE, max_lengths=lengths))
    _write(address, _table(), range(10))
    _write(address, wide, range(100, 110), note=[1, 2, 3])
    with ReplayDataset(address, {"t": 0.5, "wide": 0.5}, 8, timeout_s=WAIT_S, keep=keep) as dataset:
        batch = next(dataset)
    assert {name: column.dtype.name for name, column in batch.columns.items()} == {
        "number": "int64",
        "value": "float32",
    }
    assert (batch["value"] == batch["number"] / 2).all()


def test_of_a_mirror_only_the_rows_of_a_batch_are_cast(servers: list[Server]) -> None:
    """It keeps the whole table, which would be copied for every batch."""
    address, seen = servers[0].address, []
    _write(address, _table(), range(10))
    _write(address, _table("wide", _WIDE), range(100, 110), note=[1, 2, 3])

    def transform(rows: ItemRows) -> dict[str, Any]:
        if rows.table == 1:
            seen.append(len(rows.columns["value"]))
        return {name: column[rows.index] for name, column in rows.columns.items()}

    def join(parts: Sequence[ReplayBatch]) -> dict[str, Any]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}

    with ReplayDataset(
        address, {"t": 0.5, "wide": 0.5}, 8, timeout_s=WAIT_S, transform=transform, join=join, keep=HostRows(1)
    ) as dataset:
        batch = next(dataset)
    assert (batch["value"] == batch["number"] / 2).all()
    assert max(seen) <= 4


@pytest.mark.parametrize(
    "step, settings, names",
    [
        ({"number": 0}, {}, "'value' number"),
        ({"number": 0, "value": np.zeros(2)}, {}, "'value' float64 [2] float32 []"),
        ({"number": 0.5, "value": 0.5}, {}, "'number' [] int64 []"),
        (_STEP, {"max_item_steps": 3}, "3 1"),
    ],
)
def test_tables_that_cannot_be_mixed(
    servers: list[Server], step: dict[str, Any], settings: dict[str, Any], names: str
) -> None:
    """The message names both tables, and the column or the length that differs."""
    other = _table("other", step, **settings)
    with pytest.raises(InvalidArgument, match=naming("'t' 'other'", names)):
        ReplayDataset(servers[0].address, {_table(): 0.5, other: 0.5}, 8, create=True)


def test_table_elsewhere_is_never_created(servers: list[Server]) -> None:
    """Not found is an error at once, even where the dataset's own tables may be created."""
    fractions: dict[TableConfig | TableAt, float] = {_table(): 0.5, TableAt(_table("u"), servers[1].address): 0.5}
    with pytest.raises(NotFound, match=naming(servers[1].address, "'u'")):
        ReplayDataset(servers[0].address, fractions, 8, create=True)


def test_table_elsewhere_that_one_of_several_servers_has(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sampled where it is, listed or behind a DNS name, and made nowhere else. `min_size` is that of its part."""
    pair, own = [server.address for server in servers[:2]], servers[2].address
    _write(own, _table("own"), range(10))
    _write(pair[1], _table("demonstrations", rate_limiter=RateLimiterConfig(min_size=6)), range(100, 110))
    monkeypatch.setattr(directory, "resolve_now", lambda _: pair)
    monkeypatch.setattr(sample_stream, "_OPENING_S", 0.5)
    for addresses in (tuple(pair), "dns:///replay:7401"):
        fractions: dict[str | TableAt, float] = {"own": 0.5, TableAt("demonstrations", addresses): 0.5}
        with ReplayDataset(own, fractions, 8, timeout_s=WAIT_S) as dataset:
            assert next(dataset)["number"][4:, 0].min() >= 100
    with ReplayClient(pair[0]) as client:
        assert not client.list_tables()


def test_name_that_is_not_known_yet_is_waited_for(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """The service and who reads its table may be started together."""
    address = servers[0].address
    _write(address, _table(), range(10))
    failures = iter([OSError("not known"), OSError("not known")])

    def resolve(_: str) -> list[str]:
        for failure in failures:
            raise failure
        return [address]

    monkeypatch.setattr(directory, "resolve_now", resolve)
    monkeypatch.setattr(directory, "_AGAIN_S", 0.01)
    with ReplayDataset("dns:///replay:7401", "t", 8, timeout_s=WAIT_S) as dataset:
        next(dataset)


def test_table_elsewhere_that_is_lost_ends_the_dataset(servers: list[Server], tmp_path: Path) -> None:
    """A server that comes back without it is told of, instead of waiting for ever for items in an empty table."""
    _write(servers[0].address, _table(), range(10))
    with server_process(f"unix://{tmp_path}/replay.sock") as other, ExitStack() as stack:
        _write(other.address, _table("u"), range(10))
        fractions: dict[str | TableAt, float] = {"t": 0.5, TableAt("u", other.address): 0.5}
        dataset = stack.enter_context(ReplayDataset(servers[0].address, fractions, 8))
        next(dataset)
        other.close()
        other.start()
        with pytest.raises(FatalError, match=naming(other.address, "'u'")):
            _take_for_ever(dataset)


@pytest.mark.parametrize("is_replaced_often", [False, True])
def test_table_elsewhere_whose_server_is_replaced_by_one_without_it_ends_the_dataset(
    servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced_often: bool
) -> None:
    """A server that never had it says nothing about the one that did, which may come back; its replacement does.

    So do several, each of which stays for less than the time that the table is waited for.
    """
    own, beside, replacement = [server.address for server in servers]
    _write(own, _table(), range(10))
    monkeypatch.setattr(sample_call, "_ASK_AGAIN_S", 0.1)
    monkeypatch.setattr(sample_call, "_RETURN_S", 0.3)
    monkeypatch.setattr(sample_stream, "_OPENING_S", 0.5)
    monkeypatch.setattr(ShardDirectory.__init__, "__kwdefaults__", {"every_s": 0.1, "resolve": None})
    with server_process(f"unix://{tmp_path}/replay.sock") as other, ExitStack() as stack:
        _write(other.address, _table("u"), range(10))
        found = [beside, other.address]
        are_shown = itertools.cycle([True, not is_replaced_often])
        monkeypatch.setattr(
            directory, "resolve_now", lambda _: [*found] if next(are_shown) else [a for a in found if a != replacement]
        )
        fractions: dict[str | TableAt, float] = {"t": 0.5, TableAt("u", "dns:///replay:7401"): 0.5}
        dataset = stack.enter_context(ReplayDataset(own, fractions, 8))
        next(dataset)
        other.close()
        found.remove(other.address)
        while dataset.take(1.0) is not None:  # longer than between two looks at the name
            pass
        found.append(replacement)
        with pytest.raises(FatalError, match=naming(replacement, "'u'")):
            dataset.take(WAIT_S)


def test_table_elsewhere_whose_server_is_away_for_a_while_is_waited_for(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling restart: meanwhile the name stands for a server that came later and never had the table."""
    first, later, returned = [server.address for server in servers]
    for address in (first, returned):
        _write(address, _table(), range(10))
    are_there: list[bool] = []
    missing_s = SampleStream.missing_s

    def noted(stream: SampleStream) -> float | None:
        seconds = missing_s(stream)
        are_there.append(seconds is None)
        return seconds

    monkeypatch.setattr(sample_call, "_ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(SampleStream, "missing_s", noted)
    monkeypatch.setattr(ShardDirectory.__init__, "__kwdefaults__", {"every_s": 0.05, "resolve": None})
    found = [first]
    monkeypatch.setattr(directory, "resolve_now", lambda _: list(found))
    with ReplayDataset(first, {TableAt("t", "dns:///replay:7401"): 1.0}, 8) as dataset:
        next(dataset)
        found.append(later)
        wait_until(lambda: True in are_there, "a question to the one that came later")
        servers[0].close()
        found.remove(first)
        wait_until(lambda: False in are_there, "a question while nobody has the table")
        found.append(returned)
        while returned not in [shard.address for shard in dataset.shards() if shard.samples]:
            assert dataset.take(WAIT_S) is not None


def _take_for_ever(dataset: ReplayDataset) -> None:
    """Take what was on its way, and what comes."""
    while True:
        dataset.take(WAIT_S)


def test_transform_is_called_for_each_table_and_join_makes_the_batch(servers: list[Server]) -> None:
    """A transform knows whose items it has; without `join` several tables are refused."""
    address = servers[0].address
    _write(address, _table(), range(10))
    _write(address, _table("u"), range(100, 110))

    def transform(rows: ItemRows) -> dict[str, Any]:
        return {"x": rows.columns["number"][rows.index][:, 0] + 1000 * rows.table}

    def join(parts: Sequence[ReplayBatch]) -> dict[str, Any]:
        return {"both": np.concatenate([part["x"] for part in parts])}

    with ReplayDataset(
        address, {"t": 0.5, "u": 0.5}, 8, timeout_s=WAIT_S, transform=transform, join=join, decoding=Decoding(threads=1)
    ) as dataset:
        batch = next(dataset)
    assert list(batch.columns) == ["both"]
    assert (batch["both"] // 100).tolist() == [0] * 4 + [11] * 4
    assert batch.mask.tolist() == [[True]] * 8
    with pytest.raises(InvalidArgument, match=naming("transform 2 `join`")):
        ReplayDataset(address, {"t": 0.5, "u": 0.5}, 8, transform=transform)
