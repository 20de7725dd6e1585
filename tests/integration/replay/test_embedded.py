"""`tidemill.replay.Server`: a replay server in a thread of the program that uses it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.documented import run_example
from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.waiting import WAIT_S
from tidemill.errors import DataLoss, FatalError, InvalidArgument, Unavailable
from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    Server,
)


def _write(address: str, count: int) -> None:
    with ReplayWriter(address, steps_table(), windows=ItemWindow(1)) as writer:
        for number in range(count):
            writer.append(numbered_step(number))


def _items(address: str) -> list[int]:
    with ReplayClient(address) as client:
        return [table.items for table in client.list_tables()]


def test_example_of_its_docstring() -> None:
    """Every statement runs, and prints what is written below it."""
    count, differences = run_example(inspect.getdoc(Server) or "", "Server", {})
    assert differences == ""
    assert count >= 5


def test_it_serves_for_as_long_as_its_block(tmp_path: Path) -> None:
    """Each is empty without a folder and has a separate port; afterwards nothing listens and no thread is left."""
    with Server() as one, Server() as another:
        _write(one.address, 3)
        assert (_items(one.address), _items(another.address)) == ([3], [])
    one.close()  # a second time
    with ReplayClient(one.address, deadline_s=1.0) as client, pytest.raises(Unavailable):
        client.list_tables()
    assert [thread.name for thread in threading.enumerate() if thread.name == "replay-server"] == []


def test_a_folder_keeps_the_tables(tmp_path: Path) -> None:
    """Over one server after the other on a port of the caller's; two at once cannot have it, nor the port."""
    with Server(tmp_path / "data") as first:
        port = int(first.address.rpartition(":")[2])
        _write(first.address, 3)
        with pytest.raises(FatalError, match=naming(tmp_path / "data", "storage.folder")):
            Server(tmp_path / "data")
        with pytest.raises(FatalError, match=naming(f"127.0.0.1:{port}")):
            Server(port=port)
    with Server(tmp_path / "data", port) as second:
        assert second.address == first.address
        assert _items(second.address) == [3]


def test_flush_says_what_a_restarted_server_has_lost() -> None:
    """Steps sent while an in-memory server was restarted are not passed off as stored; later ones are stored."""
    with Server() as first:
        port = int(first.address.rpartition(":")[2])
        writer = ReplayWriter(first.address, steps_table(), windows=ItemWindow(1))
        writer.append(numbered_step(0))
        writer.flush()
    for number in range(100):
        writer.append(numbered_step(number))
    with Server(port=port) as second:
        with pytest.raises(DataLoss, match=naming(f"127.0.0.1:{port}")):
            writer.flush()
        stored = sum(_items(second.address))
        assert stored < 100
        writer.append(numbered_step(0))
        writer.flush()
        assert sum(_items(second.address)) == stored + 1
        writer.close()


@pytest.mark.parametrize("kind", [SelectorKind.MAX_HEAP, SelectorKind.MIN_HEAP])
def test_priorities_of_a_heap_may_be_negative(tmp_path: Path, kind: SelectorKind) -> None:
    """As an item's first and as its new one, over a restart, with a snapshot and from the log alone."""
    table = steps_table(sampler=SelectorConfig(kind), max_times_sampled=0)
    with Server(tmp_path) as server:
        with ReplayWriter(server.address, table) as writer:
            for number, priority in enumerate((-3.0, -1e39, 0.0, -2.0)):
                writer.append(numbered_step(number))
                writer.create_item("t", last=1, priority=priority)
        with ReplayDataset(server.address, table, 1, timeout_s=WAIT_S, prefetch=1) as dataset:
            batch = next(dataset)
            assert batch["number"][0, -1] == (2 if kind is SelectorKind.MAX_HEAP else 1)
            dataset.update_priorities(batch, [-2.5])
            with pytest.raises(InvalidArgument, match=naming("priorities[0] -1e+40 finite -1e+39 1e+39")):
                dataset.update_priorities(batch, [-1e40])
    highest = [3, 2, 0, 1] if kind is SelectorKind.MAX_HEAP else [0, 1, 3, 2]
    with (
        Server(tmp_path) as again,
        ReplayDataset(again.address, "t", 4, timeout_s=WAIT_S, prefetch=1, without_replacement=True) as dataset,
    ):
        assert next(dataset)["number"][:, -1].tolist() == highest


def test_priorities_of_a_prioritized_table_may_not_be_negative() -> None:
    """Each door refuses them, with sampler or remover prioritized."""
    rule = SelectorConfig(SelectorKind.PRIORITIZED)
    for table in (steps_table("a", sampler=rule), steps_table("b", remover=rule)):
        with Server() as server, ReplayClient(server.address) as client, ReplayWriter(server.address, table) as writer:
            writer.append(numbered_step(0))
            window = ItemWindow(1, priority=-1.0)
            calls: tuple[Callable[[], object], ...] = (
                partial(writer.create_item, table.name, last=1, priority=-1.0),
                partial(client.update_priorities, table.name, [1], [-1.0]),
                partial(ReplayWriter, server.address, table, windows=window),
            )
            for call in calls:
                with pytest.raises(InvalidArgument, match=r"\s-1\b"):
                    call()


def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    """It ends by itself, has written to neither of its outputs, and even the newest priorities are on disk."""
    code = """
import sys
from tests.integration.replay.test_embedded import _write
from tidemill.replay import ReplayClient, Server
server = Server(sys.argv[1])
_write(server.address, 3)
client = ReplayClient(server.address)
assert client.describe_table("t").items == 3
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "data").glob("*.snapshot"))  # taken at the end
    with Server(tmp_path / "data") as again:
        assert _items(again.address) == [3]


def test_a_forked_child_leaves_the_server_alone() -> None:
    """The child has neither the thread nor the log: its `close` does nothing, and the parent's server keeps running."""
    with Server() as server:
        if (child := os.fork()) == 0:
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        _write(server.address, 2)
        assert _items(server.address) == [2]


def test_forked_child_of_a_program_with_a_server_makes_no_client() -> None:
    """It says what to do instead of being aborted, as one in twenty was; without a server the child makes its own."""
    code = """
import os
from tests.support.numbered_steps import steps_table
from tidemill.errors import FailedPrecondition
from tidemill.replay import ReplayClient, ReplayDataset, ReplayWriter, Server

def forked(*calls):
    if (child := os.fork()) == 0:
        for call in calls:
            try:
                call().close()
                print("made", flush=True)
            except FailedPrecondition as error:
                print(error, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

server = Server()
address = server.address
ReplayClient(address).create_table(steps_table())
forked(
    lambda: ReplayClient(address),
    lambda: ReplayWriter(address, "t"),
    lambda: ReplayDataset(address, "t", 1),
    Server,
)
server.close()
forked(lambda: ReplayClient(address))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[4:]) == (0, ["made"])
    for line, kind in zip(lines[:4], ("connection to", "ReplayWriter", "ReplayDataset", "Server"), strict=True):
        assert f"a {kind}" in line
        assert "had a Server, which gRPC does not survive; start processes with the `spawn` method" in line


def test_keys_of_a_server_that_starts_empty_are_not_those_of_the_one_before() -> None:
    """Priorities that come late change nothing: 50 items each, under the same slots and numbers."""
    port, keys = 0, []
    for _ in range(2):
        with Server(port=port) as server, ReplayClient(server.address) as client:
            with ReplayWriter(server.address, steps_table(max_times_sampled=0), windows=ItemWindow(1)) as writer:
                for number in range(50):
                    writer.append(numbered_step(number))
            port = int(server.address.rpartition(":")[2])
            table = client.list_tables()[0].config
            with ReplaySampler(server.address, table, 50, without_replacement=True) as sampler:
                keys.append(next(sampler).keys)
            if len(keys) == 2:
                assert client.update_priorities(table.name, keys[0], np.full(50, 9.0)) == 0
                assert client.update_priorities(table.name, keys[1], np.full(50, 9.0)) == 50


def test_start_that_is_interrupted_leaves_the_folder_to_the_next_one(tmp_path: Path) -> None:
    """As in a notebook, whose kernel lives on: what is restored at that moment is not served, but let go."""
    code = """
import signal, sys, threading
from tests.integration.replay.test_embedded import _items, _write
from tidemill.replay import Server
from tidemill.services.replay import embedded

embedded._INTERRUPTED_S = 60.0  # that thread may be slow, and its end is what is tested
restored = embedded.ReplayServer
is_interrupted = threading.Event()

class SlowlyRestored(restored):
    def __init__(self, settings):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert is_interrupted.wait(60)
        super().__init__(settings)

def interrupt(*_):
    is_interrupted.set()
    raise KeyboardInterrupt

with Server(sys.argv[1]) as server:
    _write(server.address, 3)
signal.signal(signal.SIGINT, interrupt)
embedded.ReplayServer = SlowlyRestored
try:
    Server(sys.argv[1])
except KeyboardInterrupt:
    embedded.ReplayServer = restored
with Server(sys.argv[1]) as server:
    print(_items(server.address))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3]\n", "")
