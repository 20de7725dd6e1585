"""The replay service with a log, as a process: killed under load, restarted, checkpointed."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import halve
from tests.support.naming import naming
from tests.support.replay_log import RANKED, kill, load, options, write
from tests.support.replay_service import everything, open_appender, server_process, whole_table
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists, TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import RateLimiterConfig, TableDescription
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel
from tidemill.services.learner.data import table_watch
from tidemill.services.learner.data.table_watch import TableWatch
from tidemill.services.learner.status.counters import Counters


def history_of(address: str) -> int:
    """Return a server's count of agent decisions."""
    look = pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=1), draws=[pb.Draw()])
    with open_channel(address) as channel:
        (answer,) = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([look]), timeout=WAIT_S)
        return int(answer.store_id)


def test_history_goes_on_with_the_log_and_ends_with_it(tmp_path: Path) -> None:
    """Killed twice, a server continues the same count of decisions; with another folder it starts from 0."""
    found = []
    for folder in ("kept", "kept", "kept", "other"):
        with (
            server_process("127.0.0.1:0", *options(tmp_path / folder)) as server,
            ReplayClient(server.address) as client,
        ):
            client.create_table(RANKED)
            found.append(history_of(server.address))
            kill(server)
    assert found[0] > 0
    assert found[:3] == found[:1] * 3
    assert found[3] != found[0]


def test_decisions_behind_a_reset_add_up_over_restarts(tmp_path: Path) -> None:
    """A learner that samples before a reset, and again when more was stored than before, counts all; a kill is none."""
    arguments, counters = options(tmp_path), Counters()

    def store_and_sample(address: str, steps: int) -> int:
        with open_appender(address, f"actor-{steps}") as appender:
            for step in range(0, steps, 4):
                write(appender, step)
            assert appender.flush(WAIT_S)
        return look(address)

    def look(address: str) -> int:
        with ReplaySampler(address, "t", 1) as sampler:
            counters.observe(next(sampler).stored[""])
        return counters.env_steps

    with server_process("127.0.0.1:0", *arguments) as first, ReplayClient(first.address) as client:
        client.create_table(RANKED)
        assert store_and_sample(first.address, 8) == 8
        client.reset_table("t")
        assert store_and_sample(first.address, 12) == 20
        kill(first)
    with server_process("127.0.0.1:0", *arguments) as second, ReplayClient(second.address) as client:
        assert look(second.address) == 20
        client.drop_table("t")
        client.create_table(RANKED)
        assert store_and_sample(second.address, 16) == 36


def test_decisions_behind_a_reset_add_up_while_a_learner_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that has no batch yet: those before a reset, between it and a drop, and behind both."""
    monkeypatch.setattr(table_watch, "_EVERY_S", 0.02)
    config, counters = replace(RANKED, rate_limiter=RateLimiterConfig(min_size=1000)), Counters()
    with ExitStack() as stack:
        server = stack.enter_context(server_process("127.0.0.1:0", *options(tmp_path)))
        client = stack.enter_context(ReplayClient(server.address))
        client.create_table(config)
        directory = stack.enter_context(closing(ShardDirectory([server.address])))
        stack.enter_context(closing(TableWatch(directory, "t", counters, lambda: True, lambda _: None)))
        played = 0
        for steps, empties in ((8, client.reset_table), (12, client.drop_table), (4, client.reset_table)):
            with open_appender(server.address, f"actor-{steps}") as appender:
                for step in range(0, steps, 4):
                    write(appender, step)
                assert appender.flush(WAIT_S)
            played += steps
            wait_until(lambda: counters.env_steps == played, "the decisions")  # noqa: B023 - called here
            empties("t")
            client.create_table(config)


def test_metrics_of_a_table_count_from_the_start_of_the_process(tmp_path: Path) -> None:
    """A kill loses samples that no record notes: a count continued from there would fall, as no counter may."""
    with server_process("127.0.0.1:0", *options(tmp_path)) as first, ReplayClient(first.address) as client:
        client.create_table(RANKED)
        with open_appender(first.address) as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
        with ReplaySampler(first.address, "t", 1) as sampler:
            next(sampler)
        before = scrape(first.metrics_address)
        kill(first)
    assert before['tidemill_replay_inserts_total{table="t"}'] == 4
    assert before['tidemill_replay_samples_total{table="t"}'] > 0
    with server_process("127.0.0.1:0", *options(tmp_path)) as second:
        after = scrape(second.metrics_address)
        assert after['tidemill_replay_inserts_total{table="t"}'] == 0
        assert after['tidemill_replay_samples_total{table="t"}'] == 0
        with open_appender(second.address, "actor-1") as appender:
            write(appender, 0)
            assert appender.flush(WAIT_S)
        assert scrape(second.metrics_address)['tidemill_replay_inserts_total{table="t"}'] == 4


def test_tables_count_their_own_decisions_over_restarts(tmp_path: Path) -> None:
    """A writer is told those of its table alone, also behind a kill. A table that was reset counts from 0."""
    arguments, counts = options(tmp_path), {"a": 8, "b": 4}
    with server_process("127.0.0.1:0", *arguments) as first, ReplayClient(first.address) as client:
        for name, steps in counts.items():
            client.create_table(replace(RANKED, name=name))
            with open_appender(first.address, name, tables=(name,)) as appender:
                for step in range(0, steps, 4):
                    write(appender, step)
                assert appender.flush(WAIT_S)
                assert appender.env_steps == steps
        kill(first)
    with server_process("127.0.0.1:0", *arguments) as second, ReplayClient(second.address) as client:
        for name, steps in counts.items():
            assert client.describe_table(name).env_steps == steps
            batch = whole_table(second.address, replace(RANKED, name=name))
            assert batch is not None
            assert batch.env_steps == steps
            with open_appender(second.address, f"another-{name}", tables=(name,)) as appender:
                write(appender, 0)
                assert appender.flush(WAIT_S)
                assert appender.env_steps == steps + 4
        client.reset_table("a")
        assert [table.env_steps for table in client.list_tables()] == [0, 8]
        kill(second)
    with server_process("127.0.0.1:0", *arguments) as third, ReplayClient(third.address) as client:
        assert [table.env_steps for table in client.list_tables()] == [0, 8]
        client.drop_table("b")
        client.create_table(replace(RANKED, name="b"))
        assert client.describe_table("b").env_steps == 0
        assert scrape(third.metrics_address)["tidemill_replay_env_steps_total"] == 20.0


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
            with ReplaySampler([server.address], RANKED, 64, max_in_flight_batches=1) as stream:
                keys = np.unique(next(stream).keys)
            assert client.update_priorities("t", keys, np.full(len(keys), 1e14)) == len(keys)
            assert [client.checkpoint() for _ in range(3)] == [1, 2, 3]
            acknowledged = running.acknowledged
            wait_until(lambda: running.acknowledged > acknowledged, "the writers")
            running.stop()
        wait_until(lambda: sum(client.describe_table("t").fsync_counts), "a sync, which comes at intervals")
        described, metrics = client.describe_table("t"), scrape(server.metrics_address)
        check_log_figures(described, metrics)
        total_weight = client.describe_table("t").total_weight
        kill(server)
    assert len(list(tmp_path.glob("*.snapshot"))) == 2
    with server_process("127.0.0.1:0", *arguments) as again, ReplayClient(again.address) as client:
        assert client.describe_table("t").total_weight == pytest.approx(total_weight, rel=1e-12)
        with ReplaySampler([again.address], RANKED, 64, max_in_flight_batches=1) as stream:
            assert set(next(stream).keys.tolist()) <= set(keys.tolist())


def test_memory_only_server_takes_no_checkpoint(tmp_path: Path) -> None:
    """Without a folder nothing is written, and the call says why."""
    with (
        server_process("127.0.0.1:0", "--run.root", str(tmp_path)) as server,
        ReplayClient(server.address) as client,
        pytest.raises(TidemillError, match=naming("memory")),
    ):
        client.checkpoint()
    assert not list(tmp_path.iterdir())


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


def test_server_on_a_corrupt_log_says_in_one_line_what_is_lost(tmp_path: Path) -> None:
    """Half a segment cut off while it was down: its items are counted in the log line and the metrics."""
    arguments = options(tmp_path, segment_mib=1)
    with server_process("127.0.0.1:0", *arguments) as server, ReplayClient(server.address) as client:
        client.create_table(RANKED)
        with open_appender(server.address) as appender:
            for step in range(0, 400, 4):
                write(appender, step)
            assert appender.flush(WAIT_S)
        kill(server)
    halve(tmp_path / "00000001.log")
    with server_process("127.0.0.1:0", *arguments) as again, ReplayClient(again.address) as client:
        (line,) = [line for line in again.before_serving.splitlines() if "restored" in line]
        found = len(everything(again.address, RANKED))
        assert 0 < found < 400
        assert f"items={found} " in line
        assert f"dropped_items={400 - found} " in line
        assert f"tidemill replay inspect {tmp_path}" in line
        metrics = scrape(again.metrics_address)
        assert metrics["tidemill_replay_missing_records_total"] > 0
        assert metrics["tidemill_replay_corrupt_records_total"] >= metrics["tidemill_replay_missing_records_total"]
        assert metrics['tidemill_replay_corrupt_items_total{table="t"}'] == 400 - found
