"""AppendSession over real connections: every step is stored once, and errors come back."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.naming import because, naming
from tests.support.processes import stop_beyond
from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, everything, items_of, open_appender, rpc_count, write
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, crowd, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, TidemillError
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import SelectorConfig, SelectorKind
from tidemill.replay.writing.appender import StreamAppender

_WAITING = """
import sys, threading
from tests.support.replay_streams import SIGNATURE, make_chunk
from tidemill.replay.writing.appender import StreamAppender
with StreamAppender(sys.argv[1], "a", 1, SIGNATURE, ["t"], 4, max_in_flight_chunks=1) as appender:
    appender.append([make_chunk(0, 0, 0, 4)])
    threading.Timer(0.5, lambda: print(flush=True)).start()  # while it waits
    assert appender.{}
"""
"""Program that waits, so long as a limit says, for what it has appended."""

RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


def test_appended_steps_come_back_in_samples(server: LocalServer, client: ReplayClient) -> None:
    """What is acknowledged can be sampled, decodes to what was written, and is counted."""
    config = make_config(sampler=RANKED)
    assert client.create_table(config)
    assert not client.create_table(config)
    with open_appender(server.address, env_count=2) as appender:
        for first in range(0, 16, 4):
            chunks = [make_chunk(env, env, first, 4) for env in range(2)]
            items = [(env, i, min(5, first + i + 1)) for env in range(2) for i in range(4)]
            appender.append(chunks, [make_items(0, items)])
        assert appender.flush(WAIT_S)
        assert (appender.env_steps, appender.epoch, appender.unacknowledged_chunks) == (32, 1, 0)
    with ReplaySampler([server.address], config, 64) as stream:
        batch = next(stream)
    decoded = decode(SIGNATURE, batch, 5)
    steps, streams = decoded.columns["step"][decoded.index], decoded.columns["stream"][decoded.index, 0]
    expected = np.maximum(steps[:, -1:] + np.arange(-4, 1), 0)
    np.testing.assert_array_equal(steps, expected)
    assert (streams == streams[:, :1]).all()
    np.testing.assert_allclose(batch.probabilities, 1 / 32)
    assert (batch.table_items, batch.total_weight, batch.env_steps) == (32, 32.0, 32)
    keys = np.append(batch.keys[:10], np.uint64(999))  # 999 names slot 998, which does not exist
    assert client.update_priorities("t", keys, np.full(11, 5.0)) == 10
    described = client.describe_table("t")
    assert described.config == config
    assert (described.items, described.inserts, described.chunks, described.streams) == (32, 32, 8, 2)
    assert (described.priority_updates, described.unknown_keys, described.env_steps) == (10, 1, 32)
    assert described.samples >= 64
    assert described.chunk_bytes == server.replay.chunk_bytes > 0


@pytest.mark.parametrize("wait", ["append([make_chunk(0, 0, 4, 4)], timeout_s={})", "flush({})"])
def test_appender_that_stood_still_has_its_time_again(server: LocalServer, client: ReplayClient, wait: str) -> None:
    """A program that is stopped beyond its limit takes the acknowledgements that come once it continues."""
    limit_s = 4.0 * min(crowd(), 3.0)  # what is left of it after the stop is for a new connection
    command = [sys.executable, "-c", _WAITING.format(wait.format(limit_s)), server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        stop_beyond(program, limit_s + 0.5, lambda: client.create_table(make_config()))
        assert program.wait(WAIT_S) == 0


def test_appender_waits_for_a_table_that_comes_later(server: LocalServer, client: ReplayClient) -> None:
    """An actor that starts before the learner sends its steps once the table exists."""
    before = rpc_count("handled", "Append", grpc_code="NOT_FOUND")
    with open_appender(server.address) as appender:
        write(appender, range(8))
        wait_until(lambda: rpc_count("handled", "Append", grpc_code="NOT_FOUND") > before, "the streams to be refused")
        assert not appender.flush(0.0)
        client.create_table(make_config())
        assert appender.flush(WAIT_S)
    assert client.describe_table("t").items == 8


def test_actor_is_told_whether_it_has_played_before(server: LocalServer, client: ReplayClient) -> None:
    """Of the epoch that its own took the place of: none at first, and another actor's does not count."""
    client.create_table(make_config())
    with open_appender(server.address) as first:
        assert first.opened(WAIT_S)
        assert first.superseded_epoch == 0
    with open_appender(server.address) as again:
        assert again.opened(WAIT_S)
        assert again.superseded_epoch == first.epoch
    with open_appender(server.address, actor_id="another") as another:
        assert another.opened(WAIT_S)
        assert another.superseded_epoch == 0


def test_each_step_is_stored_once_over_cut_connections(server: LocalServer, client: ReplayClient) -> None:
    """Connections reset again and again in the middle of 400 steps leave every item exactly once."""
    config = make_config(max_items=1000)
    client.create_table(config)
    with Proxy(server.address) as proxy, open_appender(proxy.address, env_count=2) as appender:
        for first in range(0, 200, 20):
            for env_index in range(2):
                write(appender, range(first, first + 20), env_index)
            if first % 40 == 0:
                assert appender.opened(WAIT_S)
                wait_until(lambda: appender.last_failure is None, "a connection")
                proxy.cut()
        assert appender.flush(WAIT_S)
        assert proxy.connections > 2
        assert (appender.restarts, appender.env_steps) == (0, 400)
    assert client.describe_table("t").inserts == 400
    assert everything(server.address, config) == [(env, step) for env in range(2) for step in range(200)]


def test_chunks_whose_acknowledgement_was_lost_are_not_stored_twice(server: LocalServer, client: ReplayClient) -> None:
    """After the server stored chunks but could not say so, the resumed stream continues behind them."""
    config = make_config()
    client.create_table(config)
    with Proxy(server.address) as proxy, open_appender(proxy.address) as appender:
        write(appender, range(4))
        assert appender.flush(WAIT_S)
        with proxy.without_answers():
            write(appender, range(4, 24))
            wait_until(lambda: server.replay.env_steps == 24, "the chunks to be stored")
            assert appender.unacknowledged_chunks == 5
        write(appender, range(24, 28))
        assert appender.flush(WAIT_S)
    assert client.describe_table("t").inserts == 28
    assert everything(server.address, config) == [(0, step) for step in range(28)]


def _append_and_flush(appender: StreamAppender, first_step: int) -> None:
    """Append a chunk and wait; an error of before may come from either call."""
    appender.append([make_chunk(0, 0, first_step, 4)])
    appender.flush(WAIT_S)


def test_error_that_cannot_pass_reaches_the_owner(server: LocalServer, client: ReplayClient) -> None:
    """A wrong signature, a refused chunk and a second actor of the same name are raised by the next call."""
    client.create_table(make_config())
    wrong = StreamAppender(server.address, "a", 1, SIGNATURE[:2], ["t"], 4)
    with wrong, pytest.raises(FailedPrecondition, match=naming("signature"), check=because(Reason.SIGNATURE_DIFFERS)):
        _append_and_flush(wrong, 0)
    with open_appender(server.address, "b") as appender, pytest.raises(InvalidArgument, match=naming("first_step 2")):
        _append_and_flush(appender, 2)
    with open_appender(server.address, "c") as first:
        write(first, range(4))
        assert first.flush(WAIT_S)
        with open_appender(server.address, "c") as second:
            write(second, range(4))
            assert second.flush(WAIT_S)
            with pytest.raises(FailedPrecondition, match=naming("actor_id"), check=because(Reason.EPOCH_SUPERSEDED)):
                _append_and_flush(first, 4)
    with (
        ReplaySampler([server.address], make_config(max_items=7), 4) as stream,
        pytest.raises(TidemillError, match=naming("7")),
    ):
        next(stream)


def test_many_actors_and_samplers_share_a_server(server: LocalServer, client: ReplayClient) -> None:
    """Eight actors and two samplers at once: every step is stored once, and every sample is whole."""
    config = make_config(sampler=RANKED, max_items=10_000)
    client.create_table(config)
    appenders = [open_appender(server.address, f"actor{i}") for i in range(8)]
    streams = [ReplaySampler([server.address], config, 32) for _ in range(2)]
    try:
        writers = [threading.Thread(target=_write_as, args=(a, i)) for i, a in enumerate(appenders)]
        for writer in writers:
            writer.start()
        for stream in streams * 10:
            batch = stream.take(WAIT_S)
            assert batch is not None
            assert len(items_of(batch)) == 32
            client.update_priorities("t", batch.keys, np.full(32, 2.0))
        for writer, appender in zip(writers, appenders, strict=True):
            writer.join(WAIT_S)
            assert appender.flush(WAIT_S)
    finally:
        for appender in appenders:
            appender.close()
        for stream in streams:
            stream.close()
    found = everything(server.address, config)
    assert found == [(actor, step) for actor in range(8) for step in range(80)]


def _write_as(appender: StreamAppender, number: int) -> None:
    for first in range(0, 80, 4):
        items: Sequence[tuple[int, int, int]] = [(0, i, 1) for i in range(4)]
        appender.append([make_chunk(number, 0, first, 4)], [make_items(0, items)])
