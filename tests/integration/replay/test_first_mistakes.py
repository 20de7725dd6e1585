"""The first lines of a program: tables by name, and what is said of a wrong argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import SIGNATURE, STEP, numbered_step, steps_table
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.replay import (
    Decoding,
    HostRows,
    ItemWindow,
    RateLimiterConfig,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    Server,
    TableConfig,
    TableUpdate,
)
from tidemill.replay.sampling.adapters import torch_dataset

_UNIFORM = SelectorConfig(SelectorKind.UNIFORM)


def test_table_that_is_there_is_named(server: LocalServer) -> None:
    """A writer, a dataset of one table or of several, and a sampler need no configuration of it."""
    with ReplayClient(server.address) as client:
        client.create_table(steps_table())
        client.create_table(steps_table("u"))
    with ReplayWriter(server.address, ["t", "u"], windows={"t": ItemWindow(1), "u": ItemWindow(2)}) as writer:
        for number in range(12):
            writer.append(numbered_step(number))
    with ReplayDataset(server.address, "t", 4, timeout_s=WAIT_S, prefetch=1) as dataset:
        assert next(dataset)["number"][:, -1].tolist() == [0, 1, 2, 3]
    with ReplayDataset(server.address, {"t": 0.5, "u": 0.5}, 4, timeout_s=WAIT_S, prefetch=1) as dataset:
        assert next(dataset).lengths.tolist() == [1, 1, 2, 2]
    with ReplaySampler(server.address, "u", 1) as sampler:
        assert len(next(sampler).keys) == 1


def test_table_that_is_not_there_is_not_made(server: LocalServer) -> None:
    """A misspelt name is an error that says which there are, at once; of readers also where it is in a TableConfig."""
    with ReplayClient(server.address) as client:
        client.create_table(steps_table())
        makes: tuple[Callable[[], object], ...] = (
            lambda: ReplayWriter(server.address, "tt"),
            lambda: ReplayDataset(server.address, "tt", 1),
            lambda: ReplayDataset(server.address, steps_table("tt"), 1),
            lambda: ReplayDataset(server.address, {steps_table(): 0.5, steps_table("tt"): 0.5}, 2),
            lambda: ReplaySampler([server.address], "tt", 1),
            lambda: ReplaySampler([server.address], steps_table("tt"), 1),
        )
        for make in makes:
            with pytest.raises(NotFound, match=naming("table 'tt' ['t']")):
                make()
        assert [table.config.name for table in client.list_tables()] == ["t"]
    with pytest.raises(Unavailable, match=naming("127.0.0.1:9 0.1")):
        ReplayWriter("127.0.0.1:9", "t", timeout_s=0.1)


def test_reader_makes_a_table_where_it_is_told_to(server: LocalServer) -> None:
    """It may then be opened before what writes to the table; a name alone is not enough to make one."""
    with (
        ReplayDataset(server.address, steps_table(), 1, timeout_s=WAIT_S, create=True) as dataset,
        ReplayClient(server.address) as client,
    ):
        wait_until(client.list_tables, "the table")
        with ReplayWriter(server.address, "t", windows=ItemWindow(1)) as writer:
            writer.append(numbered_step(7))
        assert next(dataset)["number"][0, -1] == 7
    with pytest.raises(InvalidArgument, match=naming("create True 't' TableConfig")):
        ReplayDataset(server.address, "t", 1, create=True)


def test_prioritized_has_the_exponent_of_its_paper() -> None:
    """It was 0 unless given, so that priorities were ignored; 0 can still be given, and is that of all others."""
    assert SelectorConfig(SelectorKind.PRIORITIZED).priority_exponent == 0.6
    assert SelectorConfig(SelectorKind.PRIORITIZED, 0.0).priority_exponent == 0.0
    assert _UNIFORM.priority_exponent == 0.0


def _table(**settings: Any) -> Callable[[], object]:  # noqa: ANN401
    given: dict[str, Any] = {"sampler": _UNIFORM, "max_items": 1, "max_item_steps": 1} | settings
    return lambda: TableConfig("t", given.pop("signature", SIGNATURE), **given)


@pytest.mark.parametrize(
    "call, says",
    [
        (_table(signature=STEP), "signature dict tuple ColumnSpec signature_like(step)"),
        (_table(signature=("number",)), "column 'number'"),
        (_table(sampler="uniform"), "sampler 'uniform' SelectorConfig"),
        (_table(sampler=SelectorKind.UNIFORM), "sampler SelectorKind SelectorConfig"),
        (_table(remover="fifo"), "remover 'fifo' SelectorConfig"),
        (_table(rate_limiter=8), "rate_limiter 8 RateLimiterConfig"),
        (_table(max_items=1e5), "max_items 100000.0 integer"),
        (lambda: TableConfig(SIGNATURE, "t", _UNIFORM, 1, 1), "table tuple string"),  # type: ignore[arg-type]
        (lambda: SelectorConfig("uniform"), "kind 'uniform' SelectorKind"),  # type: ignore[arg-type]
        (lambda: SelectorConfig(SelectorKind.PRIORITIZED, "0.6"), "priority_exponent '0.6'"),  # type: ignore[arg-type]
        (lambda: RateLimiterConfig(2.5), "min_size 2.5 integer"),  # type: ignore[arg-type]
        (lambda: RateLimiterConfig(1, "4", 1.0), "samples_per_insert '4'"),  # type: ignore[arg-type]
        (lambda: ItemWindow(2.0), "length 2.0 integer"),  # type: ignore[arg-type]
    ],
)
def test_mistake_in_a_table_is_a_type_error(call: Callable[[], object], says: str) -> None:
    """It names the argument, what was given, and what to give instead."""
    with pytest.raises(TypeError, match=naming(says)):
        call()


def test_partial_item_is_no_longer_than_a_whole_one() -> None:
    """One that asks for more steps would never be made."""
    assert ItemWindow(3, partial=3).partial == 3
    with pytest.raises(InvalidArgument, match=naming("partial 7 0 3 length")):
        ItemWindow(length=3, partial=7)


def test_mistake_of_a_client_is_a_type_error(server: LocalServer) -> None:
    """As above, for the objects that talk to a server; numbers of NumPy are none."""
    table, address = steps_table(max_items=np.int64(9)), server.address
    with (
        ReplayWriter(address, table) as writer,
        ReplayClient(address) as client,
        ReplayDataset(address, table, np.int64(1)) as dataset,  # type: ignore[arg-type]
        Server() as embedded,
    ):
        any_writer: Any = writer  # a type checker would find these mistakes
        any_client: Any = client
        any_dataset: Any = dataset
        any_server: Any = embedded
        makes_writer: Any = ReplayWriter
        makes_dataset: Any = ReplayDataset
        makes_server: Any = Server
        writer.append(STEP)
        calls: tuple[tuple[Callable[[], object], str], ...] = (
            (lambda: makes_writer(any_server, table), "address 'HOST:PORT'"),
            (lambda: makes_writer(table, address), "address TableConfig 'HOST:PORT'"),
            (lambda: makes_writer(7401, table), "address 7401 'HOST:PORT'"),
            (lambda: makes_writer(address, {"t": table}), "dict TableConfig"),
            (lambda: makes_writer(address, [STEP]), "table dict TableConfig"),
            (lambda: makes_writer(address, table, windows=2), "windows 2 ItemWindow"),
            (lambda: makes_writer(address, table, windows={"t": 2}), "table 't' 2"),
            (lambda: makes_writer(address, table, num_envs=2.0), "num_envs 2.0 integer"),
            (lambda: makes_dataset(any_server, table, 1), "address 'HOST:PORT'"),
            (lambda: makes_dataset(table, address, 1), "address TableConfig"),
            (lambda: makes_dataset(address, [table], 1), "list TableConfig"),
            (lambda: makes_dataset(address, table, "32"), "batch_size '32' integer"),
            (lambda: makes_dataset([any_server], table, 1), "address"),
            (lambda: ReplayClient(any_server), "address 'HOST:PORT'"),
            (lambda: any_client.describe_table(table), "table TableConfig table"),
            (lambda: any_client.reset_table(table), "table TableConfig"),
            (lambda: any_client.create_table("t"), "config 't' TableConfig"),
            (lambda: any_client.update_table("t", {"max_items": 4}), "update dict TableUpdate"),
            (lambda: any_client.update_table(table, TableUpdate(max_items=4)), "table TableConfig"),
            (lambda: any_writer.create_item(table, last=1), "table TableConfig"),
            (lambda: any_writer.create_item("t", last=1.0), "last 1.0 integer"),
            (lambda: any_writer.create_item("t", last=1, payload="x"), "payload 'x'"),
            (lambda: any_dataset.update_priorities(np.zeros(1), [1.0]), "batch ReplayBatch"),
            (lambda: makes_writer(address, table, timeout_s="5"), "timeout_s '5'"),
            (lambda: makes_dataset(address, table, 1, timeout_s="5"), "timeout_s '5' None"),
            (lambda: makes_dataset(address, table, 1, beta="1"), "beta '1'"),
            (lambda: makes_dataset(address, table, 1, prefetch=1.5), "prefetch 1.5 integer"),
            (lambda: any_writer.create_item("t", last=1, priority="high"), "priority 'high'"),
            (lambda: any_writer.append(STEP, env="0"), "env '0' integer"),
            (lambda: any_writer.append(STEP, env=True), "env True integer"),
            (lambda: makes_server(5), "folder 5 path None"),
            (lambda: makes_server(port="7401"), "port '7401' integer"),
            (lambda: torch_dataset(any_dataset), "open_dataset ReplayDataset function"),
        )
        for call, says in calls:
            with pytest.raises(TypeError, match=naming(says)):
                call()
        with pytest.raises(InvalidArgument, match=naming("step list dict tuple")):
            any_writer.append([0, 1])
        with pytest.raises(InvalidArgument, match=naming("ack 'disk' 'write' 'fsync'")):
            makes_server(ack="disk")
        for wrong in ("localhost", "http://localhost:7401", ""):
            for makes in (makes_writer, makes_dataset):
                with pytest.raises(InvalidArgument, match="address"):
                    makes(wrong, table, **({"batch_size": 1} if makes is makes_dataset else {}))


def test_params_version_that_no_message_can_have_is_refused(server: LocalServer) -> None:
    """And the step with it is not taken; what comes after is stored."""
    with ReplayWriter(server.address, steps_table(), windows=ItemWindow(1), chunk_length=1) as writer:
        for wrong in (-1, 2**64):
            with pytest.raises(InvalidArgument, match=naming("params_version", wrong, 0, 2**64 - 1)):
                writer.append(STEP, params_version=wrong)
        with pytest.raises(TypeError, match=naming("params_version 1.5 integer")):
            writer.append(STEP, params_version=1.5)  # type: ignore[arg-type]
        for number in range(2):
            writer.append(numbered_step(number), params_version=np.uint64(3))  # type: ignore[arg-type]
        writer.flush(WAIT_S)
        assert (writer.episode_steps(), writer.unacknowledged_chunks) == (2, 0)


@pytest.mark.parametrize("kind", [bool, np.bool_, np.array])
def test_single_environment_says_whether_its_episode_ended(server: LocalServer, kind: Callable[[bool], Any]) -> None:
    """As its step returned it; with several environments one flag is refused, and ends no episode."""
    with ReplayWriter(server.address, steps_table()) as writer:
        for ended, steps in ((False, 1), (True, 0), (False, 1)):
            writer.append(STEP)
            writer.end_episode(kind(ended))
            assert writer.episode_steps() == steps
    with ReplayWriter(server.address, steps_table(), num_envs=2) as writer:
        for env in range(2):
            writer.append(STEP, env=env)
        for ended in (False, True):
            with pytest.raises(InvalidArgument, match=naming("mask () (2,)")):
                writer.end_episode(kind(ended))
        assert [writer.episode_steps(env) for env in range(2)] == [1, 1]


@pytest.mark.parametrize("wrong", [np.array([0, 0, 1], np.float32), [0, 0, 1], [0, 0, 0], [0.0, 2.0], [3], [-1], "1"])
def test_environments_are_named_by_a_bool_mask_or_indices(server: LocalServer, wrong: Any) -> None:  # noqa: ANN401
    """A mask of numbers was taken for indices: it ended the episodes of other environments."""
    with ReplayWriter(server.address, steps_table(), num_envs=3) as writer:
        for env in range(3):
            writer.append(STEP, env=env)
        with pytest.raises(InvalidArgument, match=naming("bool [3] 0 .. 2")):
            writer.end_episode(wrong)
        writer.end_episode([])
        assert [writer.episode_steps(env) for env in range(3)] == [1, 1, 1]
        writer.end_episode(np.array([2, 0]))
        assert [writer.episode_steps(env) for env in range(3)] == [0, 1, 0]


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"batch_size": -1}, "batch_size -1 1 65536"),
        ({"batch_size": 65_537}, "batch_size 65537 1 65536"),
        ({"max_in_flight_batches": 0}, "max_in_flight_batches 0 1"),
    ],
)
def test_sampler_of_nothing_is_refused(server: LocalServer, arguments: dict[str, Any], says: str) -> None:
    """Instead of a wait without end."""
    with pytest.raises(InvalidArgument, match=naming(says)):
        ReplaySampler(server.address, steps_table(), **({"batch_size": 1} | arguments), create=True)


def test_rows_that_cannot_be_kept_are_refused() -> None:
    """Before anything is opened, by the name of the argument."""
    with pytest.raises(TypeError, match=naming("keep.mib '512' integer")):
        HostRows("512")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=naming("keep.chunk_length 0 1 1024")):
        HostRows(512, chunk_length=0)


@pytest.mark.parametrize(
    "column, transform, says",
    [
        ("images", lambda _: {}, "decoding.encoded 'images' 't' image"),
        ("image", None, "decoding.encoded 'image' `transform`"),
    ],
)
def test_column_that_nothing_decodes_is_refused(
    server: LocalServer, column: str, transform: Callable[[Any], dict[str, Any]] | None, says: str
) -> None:
    """A misspelt one was decoded all the same; one without a transform was missing from the batches."""
    with pytest.raises(InvalidArgument, match=naming(says)):
        ReplayDataset(
            server.address, steps_table(), 1, transform=transform, decoding=Decoding(encoded=column), create=True
        )


def test_use_after_close_is_an_error(server: LocalServer) -> None:
    """A closed writer took steps that went nowhere; a block whose writer was closed in it ends as it should."""
    table = steps_table(max_times_sampled=0)
    with ReplayWriter(server.address, table, windows=ItemWindow(1)) as writer:
        writer.append(numbered_step(1))
        writer.flush()
        writer.close()
    calls: tuple[Callable[[], object], ...] = (
        lambda: writer.append(STEP),
        lambda: writer.create_item("t", last=1),
        writer.end_episode,
        writer.flush,
    )
    for call in calls:
        with pytest.raises(FailedPrecondition, match=naming("writer closed")):
            call()
    with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S) as dataset:
        batch = next(dataset)
        with pytest.raises(KeyError, match=naming("'numbers' 'number'")):
            batch["numbers"]
    with pytest.raises(FailedPrecondition, match=naming("dataset closed")):
        dataset.update_priorities(batch, [1.0])
    assert next(dataset, None) is None
