"""Changes of a running table over the wire, and the commands that ask for them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.support.naming import because, naming
from tests.support.replay_log import options
from tests.support.replay_service import LocalServer, open_appender, server_process, write
from tests.support.replay_streams import UNIFORM, make_config
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists, InvalidArgument, NotFound, Reason, ResourceExhausted
from tidemill.replay import Server
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig, TableUpdate
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import open_channel
from tidemill.services.replay.__main__ import main
from tidemill.types import ColumnSpec

HELD_BACK = make_config(limiter=RateLimiterConfig(min_size=4, samples_per_insert=1.0, error_buffer=1.0))


def test_limiter_switched_off_lets_the_waiting_writer_and_sampler_pass(
    server: LocalServer, client: ReplayClient
) -> None:
    """A writer that waits for samples continues at once, without any; so does a sampler that waits for inserts."""
    client.create_table(HELD_BACK)
    table = server.replay.find("t")
    with open_appender(server.address) as appender:
        writing = threading.Thread(target=write, args=(appender, range(80)))
        writing.start()
        wait_until(lambda: server.admission.waiting(table, "insert") == 1, "the writer to be held back")
        assert client.update_table("t", TableUpdate(rate_limiter_on=False)).rate_limiter_off
        writing.join(WAIT_S)
        assert appender.flush(WAIT_S)
    assert client.update_table("t", TableUpdate(rate_limiter_on=True)).limiter_diff == 0
    with ReplaySampler([server.address], HELD_BACK, 8, max_in_flight_batches=1) as sampler:
        assert sampler.take(WAIT_S) is not None
        wait_until(lambda: server.admission.waiting(table, "sample") == 1, "the sampler to be held back")
        described = client.update_table("t", TableUpdate(samples_per_insert=0.0, error_buffer=0.0))
        assert described.config.rate_limiter == RateLimiterConfig(min_size=4)
        assert described.updated_fields == ("rate_limiter",)
        assert all(sampler.take(WAIT_S) is not None for _ in range(5))
        assert client.create_table(HELD_BACK) is False
        assert sampler.reconnects == 0


def test_dropping_a_table_ends_the_calls_that_wait_for_it(server: LocalServer, client: ReplayClient) -> None:
    """A writer that is held back and a reader that waits are told it is gone; nothing of it stays with the server."""
    client.create_table(HELD_BACK)
    client.create_table(make_config("empty"))
    table, empty = server.replay.find("t"), server.replay.find("empty")
    reads = pb.SampleRequest(open=pb.SampleOpen(table="empty", batch_size=1), credit=1)
    with open_channel(server.address) as channel, open_appender(server.address) as appender:
        reading = replay_pb2_grpc.ReplayServiceStub(channel).Sample(iter([reads]), timeout=WAIT_S)
        write(appender, range(80))  # some of it unacknowledged
        wait_until(lambda: server.admission.waiting(table, "insert") == 1, "the writer to be held back")
        wait_until(lambda: server.admission.waiting(empty, "sample") == 1, "the reader to wait")
        assert client.drop_table("t") > 0
        assert client.drop_table("empty") == 0
        with pytest.raises(grpc.RpcError) as refused:
            next(reading)
        assert (refused.value.code(), refused.value.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "table 'empty' was dropped",
        )
        wait_until(lambda: isinstance(appender.last_failure, NotFound), "the writer to be told")
        appender.stop()
    assert client.list_tables() == ()
    assert (server.replay.chunks, server.replay.streams.count) == (0, 0)
    for call in (client.drop_table, client.describe_table):
        with pytest.raises(NotFound, match=naming("table 't' none"), check=because(Reason.UNKNOWN_TABLE)):
            call("t")


def test_a_full_server_takes_another_table_once_one_is_dropped(client: ReplayClient) -> None:
    """Tables that nobody needs are dropped to make room, and a dropped name is free for another configuration."""
    for number in range(4):  # as many as the fixture takes
        client.create_table(make_config(f"t{number}"))
    with pytest.raises(ResourceExhausted, match=naming("max_tables")):
        client.create_table(make_config("another"))
    client.drop_table("t0")
    assert client.create_table(make_config("t0", max_items=7))
    assert client.describe_table("t0").config.max_items == 7


def test_config_that_was_read_between_two_changes_is_no_objection(server: LocalServer, client: ReplayClient) -> None:
    """Whoever connects again with what it read before the last change finds the table, and leaves it as it is."""
    client.create_table(make_config(sampler=UNIFORM))
    between = client.update_table("t", TableUpdate(max_items=50)).config
    client.update_table("t", TableUpdate(max_items=60))
    assert client.create_table(between) is False
    assert client.update_table("t", TableUpdate(min_size=2)).config.max_items == 60
    with pytest.raises(AlreadyExists, match="max_times_sampled"):  # a field that nobody changed
        client.create_table(replace(between, max_times_sampled=7))


def test_config_that_was_read_between_two_changes_is_no_objection_after_a_restart(tmp_path: Path) -> None:
    """The first client that comes back with it does not undo the second change."""
    with Server(tmp_path) as server, ReplayClient(server.address) as client:
        client.create_table(make_config(sampler=UNIFORM))
        between = client.update_table("t", TableUpdate(max_items=50)).config
        client.update_table("t", TableUpdate(max_items=make_config().max_items))
    with Server(tmp_path) as server, ReplayClient(server.address) as client:
        assert client.create_table(between) is False
        assert client.describe_table("t").config.max_items == make_config().max_items


def test_table_with_other_columns_names_only_those_that_differ(server: LocalServer, client: ReplayClient) -> None:
    """Not the whole signatures of both."""
    columns = [ColumnSpec(name, "float32", (2,)) for name in ("alike", "wider", "older")]
    table = replace(make_config("columns"), signature=tuple(columns))
    client.create_table(table)
    wanted = (columns[0], replace(columns[1], shape=(3,)), ColumnSpec("newer", "bool", ()))
    named = "'wider' [2] [3] 'older' 'newer' signature"
    with pytest.raises(AlreadyExists, match=naming(f"table 'columns' {named}")) as other:
        client.create_table(replace(table, signature=wanted))
    assert "alike" not in str(other.value)
    with pytest.raises(AlreadyExists, match="in the order"):
        client.create_table(replace(table, signature=tuple(reversed(columns))))


def test_bad_requests_are_refused_by_name(server: LocalServer, client: ReplayClient) -> None:
    """What is out of range is refused on the client's side or the server's, and nothing changes."""
    client.create_table(make_config(sampler=UNIFORM))
    with pytest.raises(NotFound, match=naming("table 'nowhere'")):
        client.update_table("nowhere", TableUpdate(max_items=3))
    with pytest.raises(NotFound, match=naming("table 'nowhere'")):
        client.delete_matching_items("nowhere", min_age=1)
    with pytest.raises(InvalidArgument, match=naming("rate_limiter.min_size 101 0 100")):
        client.update_table("t", TableUpdate(min_size=101))
    with pytest.raises(InvalidArgument, match=naming("env_index 0 actor_id")):
        client.delete_matching_items("t", env_index=0, min_age=1)
    with pytest.raises(InvalidArgument, match=naming("min_age -1 0")):
        client.delete_matching_items("t", min_age=-1)
    assert client.describe_table("t").updated_fields == ()


def test_commands_change_a_server_and_a_restart_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`update`, `delete` and `tables` do what they say; what they cannot do they say, and fail."""
    arguments = options(tmp_path)
    with server_process("127.0.0.1:0", *arguments) as server, ReplayClient(server.address) as client:
        assert main(["tables", server.address]) == 0
        assert "no tables" in capsys.readouterr().out
        client.create_table(make_config())
        client.create_table(make_config("spare"))
        client.update_table("spare", TableUpdate(rate_limiter_on=False))
        assert main(["tables", server.address]) == 0
        assert "rate limiter: OFF, min_size 1\n" in capsys.readouterr().out  # it has no items, but holds back nothing
        for actor in ("one", "two"):
            with open_appender(server.address, actor) as appender:
                write(appender, range(20))
                assert appender.flush(WAIT_S)
        assert main(["update", server.address, "t", "--max-items", "30", "--rate-limiter", "off"]) == 0
        shown = capsys.readouterr().out
        assert "t: 30 of at most 30 items" in shown
        assert "rate limiter: OFF" in shown
        assert "changed in use: max_items" in shown
        assert main(["delete", server.address, "t", "--actor", "one", "--env", "0"]) == 0
        assert capsys.readouterr().out == "deleted 10 items of t\n"
        assert main(["delete", server.address, "t"]) != 0
        assert "--actor, --min-age, --since and --until" in capsys.readouterr().err
        assert main(["delete", server.address, "t", "--env", "0", "--min-age", "1"]) != 0
        assert "--env is 0, which needs the --actor" in capsys.readouterr().err
        assert main(["update", server.address, "t", "--queue-size", "31"]) != 0
        assert "rate_limiter.queue_size is 31, must be 0 .. 30" in capsys.readouterr().err
        assert any('table="spare"' in name for name in scrape(server.metrics_address))
        assert main(["drop", server.address, "spare"]) == 0
        assert capsys.readouterr().out == "dropped spare, which had 0 items\n"
        assert not any('table="spare"' in name for name in scrape(server.metrics_address))
        assert main(["drop", server.address, "spare"]) != 0
        assert "no table 'spare'; tables: t" in capsys.readouterr().err
        server.process.kill()
        server.process.wait(WAIT_S)
    with server_process("127.0.0.1:0", *arguments) as again, ReplayClient(again.address) as client:
        assert [table.config.name for table in client.list_tables()] == ["t"]
        assert client.create_table(make_config()) is False
        assert main(["tables", again.address]) == 0
        assert "t: 20 of at most 30 items" in (shown := capsys.readouterr().out)
        assert "rate limiter: OFF" in shown
