"""Requests made to hold up a server: each is refused at once, and the longest good ones leave others their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_messages import field, opening
from tests.support.replay_service import LocalServer, local_server, open_appender
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S
from tidemill.replay.client import ReplayClient
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel

_MOST_CPU_S = 0.25  # of a machine far too busy; on an idle one a request of 16 MiB takes 0.015 s
_HALF = 8 * 2**20
OPEN = opening().SerializeToString()
HOSTILE: dict[str, Callable[[], tuple[str, list[bytes]]]] = {  # each is made by its test: together they are 200 MB
    "items": lambda: ("Append", [OPEN, field(2, b"\x12\x00" * _HALF)]),
    "chunks": lambda: ("Append", [OPEN, field(2, b"\x0a\x00" * _HALF)]),
    "signature": lambda: ("Append", [field(1, b"\x2a\x00" * _HALF)]),
    "blocks": lambda: ("Append", [OPEN, field(2, field(1, b"\x32\x00" * _HALF))]),
    "payloads": lambda: ("Append", [OPEN, field(2, field(2, b"\x32\x00" * _HALF))]),
    "numbers": lambda: ("Append", [OPEN, field(2, field(2, field(2, bytes(2 * _HALF))))]),
    "a table's signature": lambda: ("CreateTable", [field(1, b"\x12\x00" * _HALF)]),
    "a table's shape": lambda: ("CreateTable", [field(1, field(2, field(3, bytes(2 * _HALF))))]),
    "priorities": lambda: ("UpdatePriorities", [field(1, b"t") + field(3, bytes(2 * _HALF + 2**11))]),
    "keys": lambda: ("DeleteItems", [field(1, b"t") + field(2, bytes(2 * _HALF))]),
    "draws": lambda: ("Sample", [b"\x0a\x05\x0a\x01t\x10\x01" + b"\x1a\x00" * _HALF]),
}


@dataclass
class Turns:
    """What the loop did while it was watched.

    Attributes:
        longest_s: Most time on the processor between two turns of a task that asks for one all the time, in seconds.
        count: How many turns that task had.
    """

    longest_s: float = 0.0
    count: int = 0


@contextmanager
def watched(server: LocalServer) -> Iterator[Turns]:
    """Watch a server's loop."""
    turns = Turns()

    async def take_turns() -> None:
        spent_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            turns.longest_s, turns.count, spent_s = max(turns.longest_s, now_s - spent_s), turns.count + 1, now_s

    watching = asyncio.run_coroutine_threadsafe(take_turns(), server.loop)
    try:
        yield turns
    finally:
        watching.cancel()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with a table `t`."""
    with local_server(max_streams=3000) as running, ReplayClient(running.address) as client:
        client.create_table(make_config(max_items=20_000))
        yield running


@pytest.fixture(autouse=True)
def _empty_table(server: LocalServer) -> None:
    """Begin each test with nothing in the table that all share."""
    with ReplayClient(server.address) as client:
        client.reset_table("t")


@pytest.mark.parametrize("name", HOSTILE)
def test_request_that_holds_millions_is_refused_at_once(server: LocalServer, name: str) -> None:
    """16 MiB of empty entries are gigabytes and minutes when unpacked; the server does not begin to."""
    method, messages = HOSTILE[name]()
    with (
        watched(server) as turns,
        grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        call: Any = channel.stream_stream(f"/tidemill.replay.v1.ReplayService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(messages), timeout=WAIT_S))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert turns.longest_s < _MOST_CPU_S


def test_a_million_keys_leave_others_their_turn(server: LocalServer) -> None:
    """Keys are worked off in parts, with a turn of everybody else between two."""
    keys = np.arange(2**20, dtype=np.uint64)
    before = server.replay.find("t").counters.unknown_keys
    with ReplayClient(server.address, deadline_s=WAIT_S) as client:
        for change in (partial(client.update_priorities, priorities=np.ones(len(keys))), client.delete_items):
            with watched(server) as turns:
                assert change("t", keys) == 0
            assert turns.longest_s < _MOST_CPU_S
            assert turns.count >= len(keys) / 2**13
    assert server.replay.find("t").counters.unknown_keys == before + 2 * len(keys)


def test_priorities_of_a_long_list_are_checked_before_any_is_set(server: LocalServer) -> None:
    """The last of many parts is wrong: it is named by its place in the whole list, and the first is as it was."""
    with ReplayClient(server.address) as client, open_appender(server.address, "ranker") as appender:
        appender.append([make_chunk(0, 0, 0, 4)], [make_items(0, [(0, 0, 1)])])
        assert appender.flush(WAIT_S)
        table = server.replay.find("t")
        (key,) = table.items.keys(table.items.live())
        wrong = pb.UpdatePrioritiesRequest(table="t", keys=[key] * 20_000, priorities=[2.0] * 19_999 + [-1e40])
        before = table.counters.priority_updates
        with (
            open_channel(server.address) as channel,
            pytest.raises(grpc.RpcError, match=naming("priorities[19999] -1e+40")),
        ):
            replay_pb2_grpc.ReplayServiceStub(channel).UpdatePriorities(wrong, timeout=WAIT_S)
        assert table.counters.priority_updates == before
        assert client.delete_items("t", [key]) == 1


def test_actor_of_many_streams_is_stored_in_several_messages(server: LocalServer) -> None:
    """One call with more chunks and items than a message may hold comes in whole; no stream is left out."""
    streams = 1500
    one = make_chunk(0, 0, 0, 4)
    chunks = [replace(one, env_index=i) for i in range(streams)]
    items = make_items(0, [(i % streams, i // streams % 4, 1) for i in range(12 * streams)])
    before = server.replay.find("t").counters.inserts
    with open_appender(server.address, "many", env_count=streams) as appender, watched(server) as turns:
        assert appender.append(chunks, [items], timeout_s=WAIT_S)
        assert appender.flush(WAIT_S)
        assert appender.env_steps >= 4 * streams
    assert server.replay.find("t").counters.inserts == before + 12 * streams
    assert turns.longest_s < _MOST_CPU_S


def test_refused_call_leaves_no_mirror(server: LocalServer) -> None:
    """What its first message asked for is given back, or each such call would take the server's memory for good."""
    opened = pb.SampleOpen(table="t", batch_size=1, mirror=pb.Mirror(slots=64, slot_steps=4))
    tiny = pb.SampleOpen(table="t", batch_size=1, mirror=pb.Mirror(slots=64, slot_steps=4), max_message_bytes=1)
    with open_channel(server.address) as channel:
        stub: Any = replay_pb2_grpc.ReplayServiceStub(channel)
        for first in (pb.SampleRequest(open=opened, taken=[1]), pb.SampleRequest(open=tiny)):
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Sample(iter([first]), timeout=WAIT_S))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert server.replay.find("t").store._watchers == []
