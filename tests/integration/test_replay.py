"""The replay service over real connections: append, sample, update, resume, credit and back pressure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.integration.proxy import Proxy
from tests.integration.replay_service import CHUNK_LENGTH, WAIT_S, LocalServer, local_server, open_appender, wait_until
from tests.unit.replay.streams_for_tests import FIFO, SIGNATURE, UNIFORM, make_chunk, make_config, make_items
from tidemill.codec import decode
from tidemill.errors import FailedPrecondition, InvalidArgument, NotFound, TidemillError, Unavailable
from tidemill.replay.append import Appender
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampler import SampleStream
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig

RANKED = SelectorConfig(SelectorKind.PRIORITIZED, 1.0)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """An empty server."""
    with local_server() as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[ReplayClient]:
    """A client of it."""
    with ReplayClient(server.address) as opened:
        yield opened


def write(appender: Appender, steps: range, env_index: int = 0) -> None:
    """Append steps of one environment, a message for each chunk, with an item of one step at each."""
    for first in range(steps.start, steps.stop, CHUNK_LENGTH):
        count = min(CHUNK_LENGTH, steps.stop - first)
        items = make_items(0, [(0, i, 1) for i in range(count)])
        assert appender.append([make_chunk(env_index, env_index, first, count)], [items], timeout_s=WAIT_S)


def rows(batch: SampledBatch, length: int = 1) -> list[tuple[int, int]]:
    """Return (stream, last step) of each item, from the decoded columns."""
    decoded = decode(SIGNATURE, batch, length)
    last = decoded.index[:, -1]
    return list(zip(decoded.columns["stream"][last, 0].tolist(), decoded.columns["step"][last].tolist(), strict=True))


def everything(address: str, config: TableConfig, items: int) -> list[tuple[int, int]]:
    """Return (stream, last step) of every item of a table, sorted."""
    with SampleStream(address, config, items, credit=1, without_replacement=True) as stream:
        batch = stream.take(WAIT_S)
        assert batch is not None
        return sorted(rows(batch))


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
    with SampleStream(server.address, config, 64) as stream:
        batch = next(stream)
    decoded = decode(SIGNATURE, batch, 5)
    steps, streams = decoded.columns["step"][decoded.index], decoded.columns["stream"][decoded.index, 0]
    expected = np.maximum(steps[:, -1:] + np.arange(-4, 1), 0)
    np.testing.assert_array_equal(steps, expected)
    assert (streams == streams[:, :1]).all()
    np.testing.assert_allclose(batch.probabilities, 1 / 32)
    assert (batch.table_items, batch.priority_mass, batch.env_steps) == (32, 32.0, 32)
    keys = np.append(batch.keys[:10], np.uint64(999))  # 999 names slot 998, which does not exist
    assert client.update_priorities("t", keys, np.full(11, 5.0)) == 10
    described = client.describe_table("t")
    assert described.config == config
    assert (described.items, described.inserts, described.chunks, described.streams) == (32, 32, 8, 2)
    assert (described.priority_updates, described.unknown_keys, described.env_steps) == (10, 1, 32)
    assert described.samples >= 64
    assert described.chunk_bytes == server.replay.chunk_bytes > 0


def test_tables_are_listed_deleted_from_and_reset(server: LocalServer, client: ReplayClient) -> None:
    """Unary calls change what they say, and refuse tables that are not there."""
    client.create_table(make_config("b"))
    client.create_table(make_config("a"))
    assert [table.config.name for table in client.list_tables()] == ["a", "b"]
    with open_appender(server.address, tables=("a", "b")) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with SampleStream(server.address, make_config("a"), 8, credit=1, without_replacement=True) as stream:
        keys = next(stream).keys
    assert client.delete_items("a", keys[:3]) == 3
    assert client.delete_items("a", keys[:4]) == 1
    assert client.reset_table("a") == 4
    assert client.describe_table("a").items == 0
    for call in (client.describe_table, client.reset_table):
        with pytest.raises(NotFound, match="no table 'nowhere'; there are: a, b"):
            call("nowhere")
    with pytest.raises(TidemillError, match="keeps its tables in memory only"):
        client.checkpoint()


def test_appender_waits_for_a_table_that_comes_later(server: LocalServer, client: ReplayClient) -> None:
    """An actor that starts before the learner sends its steps once the table exists."""
    with open_appender(server.address) as appender:
        write(appender, range(8))
        assert not appender.flush(0.3)
        client.create_table(make_config())
        assert appender.flush(WAIT_S)
    assert client.describe_table("t").items == 8


def test_each_step_is_stored_once_over_cut_connections(server: LocalServer, client: ReplayClient) -> None:
    """Connections reset again and again in the middle of 400 steps leave every item exactly once."""
    config = make_config(max_items=1000)
    client.create_table(config)
    with Proxy(server.address) as proxy, open_appender(proxy.address, env_count=2) as appender:
        for first in range(0, 200, 20):
            for env_index in range(2):
                write(appender, range(first, first + 20), env_index)
            if first % 40 == 0:
                wait_until(lambda: appender.connected, "a connection")
                proxy.cut()
        assert appender.flush(WAIT_S)
        assert proxy.connections > 2
        assert (appender.restarts, appender.env_steps) == (0, 400)
    assert client.describe_table("t").inserts == 400
    assert everything(server.address, config, 400) == [(env, step) for env in range(2) for step in range(200)]


def test_chunks_whose_acknowledgement_was_lost_are_not_stored_twice(server: LocalServer, client: ReplayClient) -> None:
    """After the server stored chunks but could not say so, the resumed stream goes on behind them."""
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
    assert everything(server.address, config, 28) == [(0, step) for step in range(28)]


def test_sample_stream_goes_on_after_a_cut(server: LocalServer, client: ReplayClient) -> None:
    """Batches keep coming after the connection was reset."""
    config = make_config()
    client.create_table(config)
    with open_appender(server.address) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with Proxy(server.address) as proxy, SampleStream(proxy.address, config, 4, credit=2) as stream:
        for _ in range(3):
            for _ in range(4):  # more than the credit: at least one of them was asked for after the cut
                assert stream.take(WAIT_S) is not None
            proxy.cut()
        assert proxy.connections >= 3
    assert stream.take(0.0) is None


@pytest.mark.parametrize("credit", [1, 3])
def test_server_never_sends_more_batches_than_granted(server: LocalServer, client: ReplayClient, credit: int) -> None:
    """With a credit of n and nobody taking, exactly n batches are drawn; each one taken asks for one more."""
    config = make_config()
    client.create_table(config)
    with open_appender(server.address) as appender:
        write(appender, range(8))
        assert appender.flush(WAIT_S)
    with SampleStream(server.address, config, 10, credit=credit) as stream:
        for taken in range(4):
            expected = 10 * (credit + taken)
            wait_until(lambda n=expected: client.describe_table("t").samples == n, "the granted batches")  # type: ignore[misc]
            assert client.describe_table("t").samples == expected
            assert stream.take(WAIT_S) is not None


def test_sample_blocks_below_min_size_and_goes_on_at_once(server: LocalServer, client: ReplayClient) -> None:
    """A sampler waits, and says so in the description, until the insert that reaches min_size."""
    config = make_config(limiter=RateLimiterConfig(min_size=8))
    with SampleStream(server.address, config, 4, credit=1) as stream:
        wait_until(lambda: server.replay.tables, "the table")
        with open_appender(server.address) as appender:
            write(appender, range(4))
            assert appender.flush(WAIT_S)
            assert stream.take(0.2) is None
            assert client.describe_table("t").sample_blocked
            write(appender, range(4, 8))
            assert stream.take(WAIT_S) is not None
        described = client.describe_table("t")
        assert described.sample_blocked_s > 0.2
        assert described.insert_blocked_s == 0
        assert stream.waited_s > 0.2


def test_insert_blocks_when_ahead_and_the_owner_waits_for_room(server: LocalServer, client: ReplayClient) -> None:
    """Acknowledgements stop while inserts are ahead; `append` then waits, and samples let it go on."""
    config = make_config(limiter=RateLimiterConfig(1, samples_per_insert=1.0, error_buffer=8.0))
    client.create_table(config)
    stop = threading.Event()
    appender = Appender(
        server.address, "actor", 1, SIGNATURE, ["t"], CHUNK_LENGTH, max_unacknowledged_chunks=2, stop=stop
    )
    with appender:
        write(appender, range(12))  # lead 11: the next insert waits
        assert appender.flush(WAIT_S)
        write(appender, range(12, 20))
        assert not appender.flush(0.2)
        assert appender.unacknowledged_chunks == 2
        with pytest.raises(Unavailable, match=r"did not acknowledge 2 chunks within 0\.3 s"):
            appender.append([make_chunk(0, 0, 20, 4)], timeout_s=0.3)
        assert appender.blocked_s >= 0.3
        described = client.describe_table("t")
        assert described.insert_blocked
        assert described.items == 12
        with SampleStream(server.address, config, 8, credit=1) as stream:
            assert stream.take(WAIT_S) is not None
            assert stream.take(WAIT_S) is not None
            assert appender.flush(WAIT_S)
        assert client.describe_table("t").insert_blocked_s > 0.2
        stop.set()
        write_more = [make_chunk(0, 0, first, 4) for first in (20, 24, 28)]
        assert appender.append(write_more)  # there is room: a call larger than the limit goes alone


def test_stopped_owner_does_not_wait(server: LocalServer) -> None:
    """A set stop event ends a wait for room, with nothing taken."""
    stop = threading.Event()
    with Appender(server.address, "a", 1, SIGNATURE, ["none"], 4, max_unacknowledged_chunks=1, stop=stop) as appender:
        assert appender.append([make_chunk(0, 0, 0, 4)])
        threading.Timer(0.1, stop.set).start()
        assert not appender.append([make_chunk(0, 0, 4, 4)])
        assert appender.unacknowledged_chunks == 1


def test_queue_hands_each_item_to_one_of_two_samplers_in_order(server: LocalServer, client: ReplayClient) -> None:
    """A queue gives every item once, over all samplers, and its writer waits for room."""
    config = make_config(sampler=FIFO, max_times_sampled=1, limiter=RateLimiterConfig(queue_size=8))
    client.create_table(config)
    with (
        open_appender(server.address) as appender,
        SampleStream(server.address, config, 4, credit=1) as first,
        SampleStream(server.address, config, 4, credit=1) as second,
    ):
        writer = threading.Thread(target=write, args=(appender, range(80)))
        writer.start()
        seen: list[tuple[int, int]] = []
        deadline = time.monotonic() + WAIT_S
        while len(seen) < 80 and time.monotonic() < deadline:
            for stream in (first, second):  # which of them gets a batch is up to the server
                batch = stream.take(0.05)
                got = rows(batch) if batch is not None else []
                assert got == sorted(got)
                seen += got
        writer.join(WAIT_S)
    assert sorted(seen) == [(0, step) for step in range(80)]
    assert client.describe_table("t").items == 0


def _append_and_flush(appender: Appender, first_step: int) -> None:
    """Append a chunk and wait; an error of before may come from either call."""
    appender.append([make_chunk(0, 0, first_step, 4)])
    appender.flush(WAIT_S)


def test_error_that_cannot_pass_reaches_the_owner(server: LocalServer, client: ReplayClient) -> None:
    """A wrong signature, a refused chunk and a second actor of the same name are raised by the next call."""
    client.create_table(make_config())
    wrong = Appender(server.address, "a", 1, SIGNATURE[:2], ["t"], 4)
    with wrong, pytest.raises(FailedPrecondition, match="signature has columns"):
        _append_and_flush(wrong, 0)
    with open_appender(server.address, "b") as appender, pytest.raises(InvalidArgument, match="first_step is 2"):
        _append_and_flush(appender, 2)
    with open_appender(server.address, "c") as first:
        write(first, range(4))
        assert first.flush(WAIT_S)
        with open_appender(server.address, "c") as second:
            write(second, range(4))
            assert second.flush(WAIT_S)
            with pytest.raises(FailedPrecondition, match="another process appends under the same actor_id"):
                _append_and_flush(first, 4)
    with SampleStream(server.address, make_config(max_items=7), 4) as stream, pytest.raises(TidemillError, match="7"):
        next(stream)


def test_many_actors_and_samplers_share_a_server(server: LocalServer, client: ReplayClient) -> None:
    """Eight actors and two samplers at once: every step is stored once, and every sample is whole."""
    config = make_config(sampler=RANKED, max_items=10_000)
    client.create_table(config)
    appenders = [open_appender(server.address, f"actor{i}") for i in range(8)]
    streams = [SampleStream(server.address, config, 32) for _ in range(2)]
    try:
        writers = [threading.Thread(target=_write_as, args=(a, i)) for i, a in enumerate(appenders)]
        for writer in writers:
            writer.start()
        for stream in streams * 10:
            batch = stream.take(WAIT_S)
            assert batch is not None
            assert len(rows(batch)) == 32
            client.update_priorities("t", batch.keys, np.full(32, 2.0))
        for writer, appender in zip(writers, appenders, strict=True):
            writer.join(WAIT_S)
            assert appender.flush(WAIT_S)
    finally:
        for appender in appenders:
            appender.close()
        for stream in streams:
            stream.close()
    found = everything(server.address, config, 8 * 80)
    assert found == [(actor, step) for actor in range(8) for step in range(80)]


def _write_as(appender: Appender, number: int) -> None:
    for first in range(0, 80, 4):
        items: Sequence[tuple[int, int, int]] = [(0, i, 1) for i in range(4)]
        appender.append([make_chunk(number, 0, first, 4)], [make_items(0, items)])


def test_uniform_table_without_items_reports_an_empty_mass(client: ReplayClient) -> None:
    """A new table describes itself with zeros."""
    client.create_table(make_config(sampler=UNIFORM))
    described = client.describe_table("t")
    assert (described.items, described.priority_mass, described.samples_per_insert) == (0, 0.0, 0.0)
    assert described.sample_blocked
    assert not described.insert_blocked
