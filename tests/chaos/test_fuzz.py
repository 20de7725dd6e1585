"""Twenty thousand of the calls of which `make chaos` makes a million, and whether they are what they are named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.chaos import fuzz_bytes
from tests.chaos.fuzz import fuzz
from tests.chaos.fuzz_cases import KINDS, Case, cases
from tests.chaos.fuzz_door import Door
from tests.support.replay_messages import data_with, opening
from tests.support.rpc_methods import METHODS
from tests.support.waiting import WAIT_S


def test_calls_that_no_good_client_makes_are_answered_rightly_and_store_nothing(tmp_path: Path) -> None:
    """Of every kind: right statuses, servers that are well and within their limits, nothing stored that must not be."""
    reports = {report.name: report for report in fuzz(tmp_path, 20_000, seed=3)}
    assert all(report.is_clean for report in reports.values()), reports
    assert sum(report.faults for report in reports.values()) == 20_000
    assert {name for name, report in reports.items() if report.faults >= 1_000} == {f"fuzz: {kind}" for kind in KINDS}


async def test_good_calls_of_the_corpus_are_answered(tmp_path: Path) -> None:
    """Else its changes would change nothing that matters: each RPC's call is good, with a connection and without."""
    waiting = {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}  # for items, a next version, clients, training
    expected = dict.fromkeys(("Sample", "Watch", "Act", "Evaluate", "SaveCheckpoint"), waiting)
    expected["Checkpoint"] = {grpc.StatusCode.UNIMPLEMENTED}
    expected["DropTable"] = {grpc.StatusCode.NOT_FOUND}
    async with Door(tmp_path / "params") as door:
        publish = _case(door, "/tidemill.params.v1.ParamService/Publish")
        assert await door.call(publish, WAIT_S) is grpc.StatusCode.OK
        for path in sorted(METHODS, key=lambda path: path.endswith("/Stop")):  # after which there is no pause
            right = expected.get(path.rpartition("/")[2], {grpc.StatusCode.OK})
            assert await door.call(_case(door, path), 0.2 if right is waiting else WAIT_S) in right, path
        assert door.stored()[1] == 1  # chunk
        listed = _case(door, "/tidemill.replay.v1.ReplayService/ListTables")
        assert await door.call_over_http(listed) in waiting


def _case(door: Door, path: str) -> Case:
    return Case(path, tuple(door.corpus.raw(path)))


async def test_flood_of_simulators_leaves_other_addresses_their_slots(tmp_path: Path) -> None:
    """Forty loops from one address call as fast as they can for eight slots; another still plays, each time."""
    async with Door(tmp_path / "params") as door:
        path = "/tidemill.simulator.v1.SimulatorService/Play"
        opening_alone, is_over = Case(path, (door.corpus.raw(path)[0],)), asyncio.Event()

        async def flood() -> None:
            while not is_over.is_set():
                await door.call(opening_alone)
                await asyncio.sleep(0)  # as a connection would

        floods = [asyncio.create_task(flood()) for _ in range(40)]
        await asyncio.sleep(0)
        has_played = [await door.lets_others_play() for _ in range(20)]
        is_over.set()
        await asyncio.gather(*floods)
    assert all(has_played)


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_of_a_seed_are_the_same_again(tmp_path: Path, kind: str) -> None:
    """And of every method in time."""
    async with Door(tmp_path / "params") as door:
        first, second = (list(cases(kind, 100, "7", door.corpus)) for _ in range(2))
    assert first == second
    if kind not in ("bombs", "streams out of order"):
        assert len({case.path for case in first}) > len(METHODS) / 2


async def test_server_that_stored_a_refused_call_would_be_seen(tmp_path: Path) -> None:
    """What is compared before and after changes with whatever is stored."""
    async with Door(tmp_path / "params") as door:
        before = door.stored()
        good = (opening().SerializeToString(), data_with().SerializeToString())
        append = Case("/tidemill.replay.v1.ReplayService/Append", good)
        assert await door.call(append, WAIT_S) is grpc.StatusCode.OK
        assert door.stored() != before


def test_bytes_stand_for_the_call_they_were_made_of(tmp_path: Path) -> None:
    """Good calls, from which `make fuzz` begins, are answered as such; so are bytes that are not a call at all."""
    with fuzz_bytes.Target(tmp_path) as target:
        for path in target.corpus.paths:
            case = Case(path, tuple(target.corpus.raw(path)))
            data = fuzz_bytes.bytes_of(case)
            assert fuzz_bytes.case_of(data) == case
            target(data)
        for data in (b"", b"\x00", b"\xff\xff", b"\x05\x00\x02a"):
            target(data)


def test_status_that_is_wrong_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer keeps the bytes, and the message says which call it was."""
    monkeypatch.setattr(fuzz_bytes, "RIGHT", frozenset({grpc.StatusCode.OK}))
    missing = Case("/tidemill.replay.v1.ReplayService/DescribeTable", (b"\x0a\x04gone",))
    with fuzz_bytes.Target(tmp_path) as target, pytest.raises(AssertionError, match=r"DescribeTable.*NOT_FOUND"):
        target(fuzz_bytes.bytes_of(missing))
