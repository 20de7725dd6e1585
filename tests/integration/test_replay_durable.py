"""The replay service with a log, as a process: killed under load, restarted, checkpointed, with a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration.replay_service import WAIT_S, ServerProcess, open_appender, server_process, wait_until
from tests.unit.replay.streams_for_tests import SIGNATURE, make_chunk, make_config, make_items
from tidemill.codec import decode
from tidemill.errors import AlreadyExists, TidemillError
from tidemill.replay.append import Appender
from tidemill.replay.chunk import Chunk
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampler import SampleStream
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig, TableDescription

RANKED = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0), max_items=100_000)


def options(folder: Path, **others: object) -> tuple[str, ...]:
    """Return the command line of a server with a log."""
    settings = {"folder": folder, **others}
    return tuple(
        word for name, value in settings.items() for word in (f"--replay.storage.{name.replace('_', '-')}", str(value))
    )


def write(appender: Appender, first: int, stream: int = 0) -> None:
    """Append one chunk of four steps with an item of one step at each."""
    items = make_items(0, [(0, i, 1) for i in range(4)], [1.0 + first + i for i in range(4)])
    appender.append([make_chunk(stream, 0, first, 4)], [items], timeout_s=WAIT_S)


def everything(address: str, config: TableConfig) -> list[tuple[int, int]]:
    """Return (stream, step) of every item, sorted."""
    with ReplayClient(address) as client:
        count = client.describe_table("t").items
    with SampleStream(address, config, count, credit=1, without_replacement=True) as stream:
        batch = stream.take(WAIT_S)
        assert batch is not None
        assert len(set(batch.keys.tolist())) == count
        decoded = decode(SIGNATURE, batch, 1)
        last = decoded.index[:, -1]
        columns = decoded.columns
        found = zip(columns["stream"][last, 0].tolist(), columns["step"][last].tolist(), strict=True)
        return sorted(found)


class Load:
    """Threads that write one stream each until they are told to stop."""

    def __init__(self, address: str, writers: int) -> None:
        self.appenders = [open_appender(address, f"actor-{i}") for i in range(writers)]
        self.written = [0] * writers
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(writers)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            write(self.appenders[number], self.written[number], number)
            self.written[number] += 4

    @property
    def acknowledged(self) -> int:
        """Steps the server has said it stored."""
        return sum(self.written) - 4 * sum(appender.unacknowledged_chunks for appender in self.appenders)

    def stop(self) -> None:
        """Let every writer end and flush."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for appender in self.appenders:
            assert appender.flush(WAIT_S)

    def close(self) -> None:
        """End the connections."""
        self._stop.set()
        for appender in self.appenders:
            appender.close()


@contextmanager
def load(address: str, writers: int = 3) -> Iterator[Load]:
    """Write under way."""
    running = Load(address, writers)
    try:
        yield running
    finally:
        running.close()


def kill(server: ServerProcess) -> None:
    """End a server as the kernel would for want of memory."""
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait(WAIT_S)


@pytest.mark.parametrize("ack", ["write", "fsync"])
def test_server_killed_under_load_has_every_acknowledged_item_once(tmp_path: Path, ack: str) -> None:
    """Three kills while three actors write: none notices more than a pause, nothing is lost, nothing comes twice."""
    arguments = options(tmp_path, ack=ack, segment_mib=1, fsync_interval_ms=20)
    with server_process("127.0.0.1:0", *arguments) as first, ReplayClient(first.address) as client:
        address = first.address
        client.create_table(RANKED)
        server, opened = first, []
        try:
            with load(address) as running:
                for _ in range(3):
                    before = running.acknowledged
                    wait_until(lambda b=before: running.acknowledged > b + 400, "the writers")  # type: ignore[misc]
                    kill(server)
                    server = ServerProcess(address, *arguments)
                    opened.append(server)
                running.stop()
                assert [appender.restarts for appender in running.appenders] == [0, 0, 0]
                wanted = [(number, step) for number in range(3) for step in range(running.written[number])]
                assert everything(address, RANKED) == wanted
                client.wait_for_ready(WAIT_S)
                assert client.describe_table("t").env_steps == len(wanted)
        finally:
            for other in opened:
                other.close()


def test_restarted_server_has_another_capacity_and_limiter(tmp_path: Path) -> None:
    """The learner comes back with other settings: the newest items stay, a second opinion is refused."""
    arguments = options(tmp_path)
    with server_process("127.0.0.1:0", *arguments) as first, ReplayClient(first.address) as client:
        client.create_table(RANKED)
        with open_appender(first.address) as appender:
            for step in range(0, 40, 4):
                write(appender, step)
            assert appender.flush(WAIT_S)
        kill(first)
    limiter = RateLimiterConfig(min_size=5, samples_per_insert=8.0, error_buffer=1000.0)
    changed = replace(RANKED, max_items=10, rate_limiter=limiter)
    with server_process("127.0.0.1:0", *arguments) as second, ReplayClient(second.address) as client:
        assert "restored" in second.before_serving
        assert client.create_table(changed) is False
        assert client.describe_table("t").config == changed
        with pytest.raises(AlreadyExists):
            client.create_table(RANKED)
        assert everything(second.address, changed) == [(0, step) for step in range(30, 40)]
        assert second.stop()[0] == 0
    with server_process("127.0.0.1:0", *arguments) as third, ReplayClient(third.address) as client:
        assert client.describe_table("t").config == changed
        assert everything(third.address, changed) == [(0, step) for step in range(30, 40)]


def test_checkpoint_during_load_brings_priorities_back(tmp_path: Path) -> None:
    """While actors write, a checkpoint keeps the priorities set before it; a kill after it does not lose them."""
    arguments = options(tmp_path, snapshot_every_s=0)
    with server_process("127.0.0.1:0", *arguments) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with load(server.address, 2) as running:
            wait_until(lambda: running.acknowledged > 200, "the writers")
            with SampleStream(server.address, RANKED, 64, credit=1) as stream:
                keys = np.unique(next(stream).keys)
            assert client.update_priorities("t", keys, np.full(len(keys), 1e14)) == len(keys)
            assert [client.checkpoint() for _ in range(3)] == [1, 2, 3]
            acknowledged = running.acknowledged
            wait_until(lambda: running.acknowledged > acknowledged, "the writers")
            running.stop()
        described, metrics = client.describe_table("t"), scrape(server)
        check_log_figures(described, metrics)
        mass = client.describe_table("t").priority_mass
        kill(server)
    assert len(list(tmp_path.glob("*.snapshot"))) == 2
    with server_process("127.0.0.1:0", *arguments) as again, ReplayClient(again.address) as client:
        assert client.describe_table("t").priority_mass == pytest.approx(mass, rel=1e-12)
        with SampleStream(again.address, RANKED, 64, credit=1) as stream:
            assert set(next(stream).keys.tolist()) <= set(keys.tolist())


def test_memory_only_server_takes_no_checkpoint(tmp_path: Path) -> None:
    """Without a folder nothing is written, and the call says why."""
    with (
        server_process("127.0.0.1:0", "--run.root", str(tmp_path)) as server,
        ReplayClient(server.address) as client,
        pytest.raises(TidemillError, match="keeps its tables in memory only"),
    ):
        client.checkpoint()
    assert not list(tmp_path.iterdir())


def test_full_disk_holds_acknowledgements_until_there_is_room(tmp_path: Path) -> None:
    """Nothing is acknowledged that is not written; samples go on; room lets it go on by itself, with nothing lost."""
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
            size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
            for step in range(4, 40, 4):
                write(appender, step)
            wait_until(lambda: scrape(server)["tidemill_replay_log_full"] == 1.0, "the disk to be full")
            assert appender.unacknowledged_chunks == 9
            with SampleStream(server.address, RANKED, 16, credit=1) as stream:
                assert stream.take(WAIT_S) is not None
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert appender.flush(WAIT_S)
        assert scrape(server)["tidemill_replay_log_full"] == 0.0
        kill(server)
    with server_process("127.0.0.1:0", *options(tmp_path)) as again:
        assert everything(again.address, RANKED) == [(0, step) for step in range(40)]


def test_server_killed_with_a_full_disk_has_what_it_acknowledged(tmp_path: Path) -> None:
    """A record that did not fit is cut off at the restart; the actor sends it again."""
    arguments = options(tmp_path)
    with server_process("127.0.0.1:0", *arguments) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
            size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
            write(appender, 4)
            wait_until(lambda: scrape(server)["tidemill_replay_log_full"] == 1.0, "the disk to be full")
            kill(server)
            with server_process(server.address, *arguments) as again:
                assert "torn_bytes=100" in again.before_serving
                assert appender.flush(WAIT_S)
                assert everything(again.address, RANKED) == [(0, step) for step in range(8)]


@pytest.mark.parametrize(
    "chunk, message",
    [
        (replace(make_chunk(0, 0, 4, 4), blocks=(b"x", b"y", b"z")), "column 'step' has 1 bytes"),
        (make_chunk(0, 0, 8, 4), "leaves a gap"),
        (replace(make_chunk(0, 0, 4, 4), step_count=9), "step_count is 9"),
    ],
)
def test_refused_message_leaves_no_trace_in_the_log(tmp_path: Path, chunk: Chunk, message: str) -> None:
    """What is malformed or out of order is refused by name, not written, and the server goes on."""
    with server_process("127.0.0.1:0", *options(tmp_path)) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
            before = client.describe_table("t").log_bytes
            appender.append([chunk], [make_items(0, [(0, 0, 1)])])
            with pytest.raises(TidemillError, match=message):
                appender.flush(WAIT_S)
        assert client.describe_table("t").log_bytes == before
        kill(server)
    with server_process("127.0.0.1:0", *options(tmp_path)) as again, open_appender(again.address) as appender:
        write(appender, 0)
        assert appender.flush(WAIT_S)
        assert everything(again.address, RANKED) == sorted(2 * [(0, step) for step in range(4)])


def test_log_that_cannot_be_written_ends_the_server_with_a_reason(tmp_path: Path) -> None:
    """A lost folder is no full disk: nothing more is acknowledged, and whoever started the server is told."""
    folder = tmp_path / "log"
    with server_process("127.0.0.1:0", *options(folder, segment_mib=1)) as server:
        with ReplayClient(server.address) as client:
            client.create_table(RANKED)
        shutil.rmtree(folder)
        with load(server.address, 2):
            _, errors = server.process.communicate(timeout=WAIT_S)
    assert server.process.returncode == 1
    assert "FatalError: the replay log cannot be written" in errors
    assert "No such file or directory" in errors


def check_log_figures(described: TableDescription, metrics: dict[str, float]) -> None:
    """The log shows in both places, with the same figures."""
    assert described.log_bytes == metrics["tidemill_replay_log_bytes"] > described.chunk_bytes > 0
    assert described.memory_bytes == metrics["tidemill_replay_memory_bytes"] == described.chunk_bytes
    assert (described.log_segments, described.snapshot, described.log_full) == (1, 3, False)
    assert (described.corrupt_records, described.corrupt_items) == (0, 0)
    assert described.held_bytes <= described.chunk_bytes
    assert 0 < described.mean_sampled_age < described.inserts
    assert len(described.fsync_counts) == len(described.fsync_bounds_s) + 1
    count = metrics["tidemill_replay_fsync_seconds_count"]
    assert 1 <= sum(described.fsync_counts) <= count == metrics['tidemill_replay_fsync_seconds_bucket{le="+Inf"}']
    assert metrics['tidemill_replay_corrupt_items_total{table="t"}'] == 0
    assert metrics["tidemill_replay_snapshots_total"] == 3


def scrape(server: ServerProcess) -> dict[str, float]:
    """Return every sample of the server's /metrics by its full name."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=WAIT_S) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line[:1] != "#")
    return {name: float(value) for name, _, value in samples}
