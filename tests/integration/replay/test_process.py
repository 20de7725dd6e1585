"""The replay service as a process: clean stop, restart, freeze, metrics, and what its clients make of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.naming import naming
from tests.support.replay_service import open_appender, server_process
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.append_call import StreamRestarted
from tidemill.replay.writing.appender import StreamAppender


def write(appender: StreamAppender, first: int) -> None:
    """Append one chunk of four steps with an item at each."""
    appender.append([make_chunk(0, 0, first, 4)], [make_items(0, [(0, i, 1) for i in range(4)])], timeout_s=WAIT_S)


def test_sigterm_ends_the_server_cleanly_while_streams_are_open() -> None:
    """With a waiting sampler and an idle appender connected, the process ends with 0, well within its grace."""
    with (
        server_process("127.0.0.1:0", "--replay.server.grace-s", str(10 * WAIT_S)) as server,
        ReplaySampler([server.address], make_config(), 4, create=True),
        open_appender(server.address) as appender,
    ):
        assert appender.opened(WAIT_S)
        code, errors = server.stop()  # which waits for WAIT_S
        assert code == 0, errors
        assert "stopped" in errors
        assert "Traceback" not in errors


def test_sigterm_ends_the_server_though_a_call_has_not_sent_its_first_message() -> None:
    """Such a call is open as well: the process does not wait for it until its grace is over."""
    ended = threading.Event()

    def silent() -> Iterator[pb.SampleRequest]:
        ended.wait()
        yield from ()

    with (
        server_process("127.0.0.1:0", "--replay.server.grace-s", str(10 * WAIT_S)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        call = stub.Sample(silent())
        stub.ListTables(pb.ListTablesRequest())  # of the same connection: the server has heard of the call before
        try:
            code, errors = server.stop()
        finally:
            ended.set()
        assert code == 0, errors
        with pytest.raises(grpc.RpcError, match=naming("stopping")):
            next(call)


def test_frozen_server_is_noticed_and_used_again_when_it_thaws() -> None:
    """A stopped process breaks its clients' streams; nothing is lost once it continues.

    On a quiet machine that takes 9 s, see `tests/unit/rpc/test_options.py`, and without the options a minute.
    """
    with server_process() as server, ReplayClient(server.address) as client:
        client.create_table(make_config())
        with open_appender(server.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                write(appender, 4)
                wait_until(lambda: appender.last_failure is not None, "the freeze to be noticed", 30.0)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert appender.flush(WAIT_S)
            assert appender.restarts == 0
        assert client.describe_table("t").inserts == 8


def test_restarted_server_is_an_empty_one_and_clients_begin_anew() -> None:
    """An in-memory server forgets: the appender says so once, the sampler creates its table again, both continue."""
    config = make_config()
    with server_process() as first:
        address = first.address
        stream = ReplaySampler([address], config, 4, max_in_flight_batches=1, create=True)
        appender = open_appender(address)
        write(appender, 0)
        assert appender.flush(WAIT_S)
        assert stream.take(WAIT_S) is not None
    try:
        write(appender, 4)
        with server_process(address):
            wait_until(lambda: appender.restarts, "the appender to notice")
            assert appender.dropped_chunks == 1
            with pytest.raises(StreamRestarted):
                write(appender, 8)
            write(appender, 0)
            assert appender.flush(WAIT_S)
            assert (appender.restarts, appender.env_steps) == (1, 4)
            taken = [stream.take(WAIT_S) for _ in range(3)]  # one of them may be from before
            assert taken[-1] is not None
            assert taken[-1].table_items == 4
    finally:
        stream.close()
        appender.close()


def test_unary_call_to_a_server_that_is_gone_fails_within_its_deadline() -> None:
    """Nobody there is an error within the deadline, not a hang."""
    with server_process() as server:
        address = server.address
    with ReplayClient(address, deadline_s=1.0) as client:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            client.list_tables()
        with pytest.raises(Unavailable, match=naming("0.2")):
            client.wait_for_ready(0.2)
        assert time.monotonic() - started < 10


def test_metrics_show_every_counter_of_a_table() -> None:
    """A scrape has the names that dashboards are built on, with the values of the state."""
    with server_process() as server, ReplayClient(server.address) as client:
        client.create_table(make_config())
        with open_appender(server.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
        scraped = scrape(server.metrics_address)
    for name in ("inserts", "samples", "evictions", "priority_updates", "unknown_keys", "sampled_age"):
        assert f'tidemill_replay_{name}_total{{table="t"}}' in scraped
    assert scraped['tidemill_replay_items{table="t"}'] == 4.0
    assert scraped['tidemill_replay_inserts_total{table="t"}'] == 4.0
    assert scraped['tidemill_replay_blocked_seconds_total{side="sample",table="t"}'] == 0.0
    assert scraped["tidemill_replay_env_steps_total"] == 4.0
    assert scraped["tidemill_replay_chunk_bytes"] > 0
    assert scraped["tidemill_replay_streams"] == 1.0


def test_replay_process_imports_neither_torch_nor_gymnasium() -> None:
    """The server stays small: it loads nothing of learning or environments, and no LZ4."""
    code = (
        "import sys, tidemill.services.replay.__main__; "
        "print([name for name in ('torch', 'gymnasium', 'lz4', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "folder, listen", [("--folder", "--listen"), ("--replay.storage.folder", "--replay.server.address")]
)
def test_errors_name_the_options_that_were_given(tmp_path: Path, folder: str, listen: str) -> None:
    """Short ones, if these were typed. An address that is taken is noticed before a folder is made."""
    with server_process("127.0.0.1:0", "--folder", str(tmp_path / "used")) as server:
        said = []
        for name, address in (("used", "127.0.0.1:0"), ("new", server.address)):
            command = [sys.executable, "-m", "tidemill.services.replay", folder, str(tmp_path / name), listen, address]
            said.append(subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False).stderr)
    assert re.search(rf"give this one another {folder.removeprefix('--replay.')}$", said[0], re.MULTILINE)
    assert f"choose another {listen.removeprefix('--replay.')}, or port 0" in said[1].replace("replay.server", "server")
    assert not (tmp_path / "new").exists()


def test_taken_address_is_explained_in_one_line() -> None:
    """A second server on the same port ends with 1 and says what to do."""
    with server_process() as server:
        command = [sys.executable, "-m", "tidemill.services.replay", "--replay.server.address", server.address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on {server.address}" in ended.stderr
    assert "Traceback" not in ended.stderr
