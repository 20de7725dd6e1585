"""Several shards are sampled like one table: distribution, probabilities, weights, limiter, priorities."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.support.proxy import Proxy
from tests.support.replay_service import items_of, open_appender, rpc_count
from tests.support.replay_shards import (
    assert_distributed,
    fill,
    local_shards,
    sampling,
    taken,
)
from tests.support.replay_streams import make_chunk, make_config, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists
from tidemill.replay.batch import StoredSteps
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind

KINDS = {kind: SelectorConfig(kind, 0.7 if kind is SelectorKind.PRIORITIZED else 0.0) for kind in SelectorKind}
PICKED = {SelectorKind.FIFO: 0, SelectorKind.LIFO: -1, SelectorKind.MAX_HEAP: 1, SelectorKind.MIN_HEAP: 2}
"""Which of a shard's items, in order of insertion, a deterministic sampler picks; see `priorities_of`."""

_BATCHES, _BATCH = 150, 64


def priorities_of(shard: int) -> list[float]:
    """Return 4, 12 or 24 unequal priorities; item 1 has the greatest and item 2 the least."""
    count = (4, 12, 24)[shard]
    return [1.0 + shard, 9.0, 0.25, *(0.5 + (7 * i) % 5 for i in range(3, count))]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", list(SelectorKind))
def test_sampled_items_are_distributed_as_from_one_table(kind: SelectorKind, shards: int) -> None:
    """For every sampler: the items drawn from shards of unequal weight pass a chi-square test against the whole table.

    Random samplers report exactly the probability that a single table would; deterministic ones, which each shard
    applies to its own items, report 1 and are drawn from in proportion to the items of each shard.
    """
    config = make_config(sampler=KINDS[kind], max_items=300)
    items = {(shard, i): p for shard in range(shards) for i, p in enumerate(priorities_of(shard))}
    if kind in PICKED:
        sizes = [len(priorities_of(shard)) for shard in range(shards)]
        expected = {(shard, PICKED[kind] % size): size / sum(sizes) for shard, size in enumerate(sizes)}
    else:
        weights = {
            item: p ** KINDS[kind].priority_exponent if "prior" in kind.value else 1.0 for item, p in items.items()
        }
        expected = {item: weight / sum(weights.values()) for item, weight in weights.items()}
    with local_shards(shards, config) as servers:
        for shard, server in enumerate(servers):
            fill(server.address, shard, priorities_of(shard))
        counts: Counter[tuple[int, int]] = Counter()
        with sampling([server.address for server in servers], config, _BATCH) as stream:
            for _ in range(_BATCHES):
                batch = taken(stream)
                drawn = items_of(batch)
                counts.update(drawn)
                reported = [1.0 if kind in PICKED else expected[item] for item in drawn]
                np.testing.assert_allclose(batch.probabilities, reported, rtol=1e-9)
                assert batch.table_items == len(items)
    assert_distributed(counts, expected)


def test_batch_without_replacement_has_no_item_twice() -> None:
    """Every item of three shards comes exactly once in a batch as large as all of them."""
    config = make_config()
    with local_shards(3, config) as servers:
        for shard, server in enumerate(servers):
            fill(server.address, shard, priorities_of(shard))
        with sampling([s.address for s in servers], config, 40, without_replacement=True) as stream:
            assert Counter(items_of(taken(stream))) == Counter(
                (shard, i) for shard in range(3) for i in range(len(priorities_of(shard)))
            )


def test_new_priorities_go_to_the_shard_of_their_key() -> None:
    """A batch's keys name their shard; after an update each shard holds the priorities of its items."""
    config = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0))
    with local_shards(2, config) as servers:
        for shard, server in enumerate(servers):
            fill(server.address, shard, [1.0] * 4)
        with sampling([s.address for s in servers], config, 8, without_replacement=True) as stream:
            batch = taken(stream)
            assert batch.keys.shape == (8, 2)
            for (key, source), (shard, step) in zip(batch.keys.tolist(), items_of(batch), strict=True):
                client = stream.client_of(source)
                assert client is not None
                assert client.update_priorities("t", [key], [10.0 * shard + step]) == 1
        for shard, server in enumerate(servers):
            with ReplayClient(server.address) as direct:
                assert direct.describe_table("t").total_weight == sum(10.0 * shard + step for step in range(4))


def test_min_size_counts_the_items_of_all_shards() -> None:
    """Two items short, no batch comes; the missing ones may go to any shard."""
    config = make_config(limiter=RateLimiterConfig(min_size=18))
    with local_shards(3, config) as servers:
        fill(servers[0].address, 0, [1.0] * 12)
        fill(servers[1].address, 1, [1.0] * 4)
        with sampling([s.address for s in servers], config, 4) as stream:
            wait_until(lambda: sum(report.items for report in stream.shards()) == 16, "word of what is there")
            wait_until(lambda: all(report.live for report in stream.shards()), "word of all")
            answers = rpc_count("msg_sent", "Sample")
            wait_until(lambda: rpc_count("msg_sent", "Sample") >= answers + 9, "three looks at each after that")
            assert stream.take(0.0) is None
            assert sum(report.samples for report in stream.shards()) == 0
            fill(servers[0].address, 2, [1.0] * 2)
            assert taken(stream).table_items == 18


def test_ratio_is_held_over_all_shards() -> None:
    """With one writer on one of three shards, the batches of the whole buffer come, and each insert lets more come."""
    limiter = RateLimiterConfig(min_size=8, samples_per_insert=2.0, error_buffer=24.0)
    config = make_config(limiter=limiter)
    with local_shards(3, config) as servers, open_appender(servers[1].address) as appender:
        sent = 0

        def write(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                items = make_items(0, [(0, i, 1) for i in range(4)])
                assert appender.append([make_chunk(0, 0, sent, 4)], [items], timeout_s=WAIT_S)
                sent += 4

        with sampling([s.address for s in servers], config, 4, credit=1) as stream:
            write(2)
            first = _batches(stream, 24 // 4)
            assert first * 4 in range(24, 24 + 3 * 4 + 1)  # until the diff is below -24; 8 items count as none
            write(2)  # 16 more samples
            assert appender.flush(WAIT_S)
            second = _batches(stream, 40 // 4 - first)
            assert (first + second) * 4 in range(40, 40 + 3 * 4 + 1)


def _batches(stream: SampleStream, due: int) -> int:
    """Take the batches that are due, however long they take, and what comes soon after each; return how many came."""
    for _ in range(due):
        assert stream.take(WAIT_S) is not None
    more = itertools.takewhile(lambda _: stream.take(0.5) is not None, range(6))
    return max(due, 0) + len(list(more))


def test_writer_is_held_back_by_samples_that_come_from_other_shards() -> None:
    """All items lie on one shard and the writer on another: its inserts continue with the samples of the first."""
    limiter = RateLimiterConfig(min_size=8, samples_per_insert=1.0, error_buffer=16.0)
    config = make_config(limiter=limiter, max_items=1000)
    with (
        local_shards(2, config) as servers,
        sampling([s.address for s in servers], config, 16, credit=1) as stream,
    ):
        fill(servers[0].address, 0, [1.0] * 12)
        with open_appender(servers[1].address) as appender:
            for first in range(0, 160, 4):
                items = make_items(0, [(0, i, 1) for i in range(4)], [0.0] * 4)
                assert appender.append([make_chunk(1, 0, first, 4)], [items], timeout_s=WAIT_S)
            table = servers[1].replay.find("t")
            wait_until(lambda: servers[1].admission.waiting(table, "insert") == 1, "the writer to be held back")
            assert not appender.flush(0.0)  # nobody samples
            wait_until(lambda: [stream.take(0.5), appender.flush(0.05)][1], "the writer continues with what is sampled")


def test_table_of_another_configuration_on_one_shard_is_an_error() -> None:
    """It is raised by `take`, and names the difference."""
    config = make_config()
    with local_shards(2, config) as servers:
        other = make_config(max_items=77)
        with (
            sampling([s.address for s in servers], other, 4) as stream,
            pytest.raises(AlreadyExists, match="max_items"),
        ):
            stream.take(WAIT_S)


def test_reports_tell_live_shards_from_dead_ones() -> None:
    """A shard that never answers is listed as dead with its address; the others with items, weight and samples."""
    config = make_config()
    with local_shards(2, config) as servers:
        fill(servers[0].address, 0, [1.0] * 4)
        with sampling([servers[0].address, servers[1].address, "127.0.0.1:1"], make_config(max_items=150), 6) as stream:
            taken(stream)
            wait_until(lambda: sum(report.live for report in stream.shards()) == 2, "both shards")
            reports = stream.shards()
    assert [(r.name, r.live, r.items, r.total_weight) for r in reports] == [
        ("0", True, 4, 4.0),
        ("1", True, 0, 0.0),
        ("2", False, 0, 0.0),
    ]
    assert reports[0].samples >= 6
    assert reports[2].address == "127.0.0.1:1"


def test_env_steps_are_told_by_shard_and_together() -> None:
    """A batch says how many agent decisions each shard has stored, for counters that outlive a shard."""
    config = make_config()
    with local_shards(2, config) as servers:
        fill(servers[0].address, 0, [1.0] * 4)
        fill(servers[1].address, 1, [1.0] * 8)
        with sampling([s.address for s in servers], config, 6) as stream:
            batch = taken(stream)
    assert {name: stored.env_steps for name, stored in batch.stored.items()} == {"0": 4, "1": 8}
    assert batch.env_steps == 12


def test_shard_that_joins_by_name_gets_the_table_and_is_sampled() -> None:
    """The name stands for one server, then for two: the second gets its part of the table, and gives its share."""
    config = make_config()
    with local_shards(2) as servers, ReplayClient(servers[1].address) as second:
        answers = [[servers[0].address]]
        directory = ShardDirectory(["dns:///replay:1"], 2, every_s=0.05, resolve=lambda _: answers[-1])
        rng = np.random.default_rng(3)
        with (
            closing(directory),
            closing(SampleStream(directory, config, 8, rng=rng, max_in_flight_batches=1)) as stream,
        ):
            wait_until(lambda: [report.live for report in stream.shards()] == [True], "the first shard")
            fill(servers[0].address, 0, [1.0] * 4)
            assert taken(stream).stored == {
                servers[0].address: StoredSteps(servers[0].replay.store_id, 4, servers[0].replay.find("t").count_id)
            }
            answers.append([server.address for server in servers])
            wait_until(lambda: len(second.list_tables()) == 1, "the table on the second shard")
            fill(servers[1].address, 1, [1.0] * 4)
            wait_until(lambda: 1 in {stream_number for stream_number, _ in items_of(taken(stream))}, "its items")


def test_shard_that_appears_while_the_stream_closes_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread, which was about to follow the directory, opens no call that nobody would close."""
    with closing(ShardDirectory(["127.0.0.1:1", "127.0.0.1:2"])) as directory:
        stream = SampleStream(directory, make_config(), 4)
        waiting, listed = threading.Event(), threading.Event()

        def wait(_: float) -> bool:
            """End as if the time had been over just before `close`."""
            if listed.is_set():
                return True
            waiting.set()
            assert listed.wait(WAIT_S)
            monkeypatch.setattr(directory, "_current", {**directory.current, "late": "127.0.0.1:3"})
            return False

        monkeypatch.setattr(stream._closed, "wait", wait)
        monkeypatch.setattr(stream._priorities, "close", listed.set)  # once the calls are listed that are to be closed
        assert waiting.wait(WAIT_S)
        stream.close()
        assert "late" in directory.current
        assert "late" not in {report.name for report in stream.shards()}


def test_shard_that_lost_its_items_does_not_get_priorities_of_old_keys() -> None:
    """A server that comes back empty gives out new keys: those from before belong to nobody."""
    config = make_config()
    with local_shards(1, config) as servers, Proxy(servers[0].address) as proxy:
        fill(servers[0].address, 0, [1.0] * 4)
        with sampling([proxy.address, "127.0.0.1:1"], make_config(max_items=200), 4) as stream:
            source = int(taken(stream).keys[0, 1])
            assert stream.client_of(source) is not None
            with local_shards(1) as empty:
                with proxy.refusing():
                    wait_until(lambda: stream.client_of(source) is None, "the shard to be left out")
                    proxy.aim_at(empty[0].address)
                wait_until(lambda: stream.shards()[0].live, "another server at the same address")
                assert stream.client_of(source) is None
                fill(empty[0].address, 0, [1.0] * 4)
                sources = {int(taken(stream).keys[0, 1]) for _ in range(6)}  # the first may be from before
                assert stream.client_of(max(sources)) is not None


def test_queue_over_shards_gives_each_item_once() -> None:
    """Items that may be sampled once: with batches underway ahead of use, all come, none twice, and then no more."""
    config = make_config(sampler=KINDS[SelectorKind.FIFO], max_items=300, max_times_sampled=1)
    with local_shards(3, config) as servers:
        for shard, server in enumerate(servers):
            fill(server.address, shard, priorities_of(shard))
        with sampling([s.address for s in servers], config, 8, credit=3) as stream:
            drawn = [item for _ in range(5) for item in items_of(taken(stream))]
            assert Counter(drawn) == Counter((s, i) for s in range(3) for i in range(len(priorities_of(s))))
            assert [server.replay.find("t").size for server in servers] == [0, 0, 0]
            assert stream.take(0.0) is None


def test_queue_whose_items_all_go_to_one_shard_gives_a_batch_larger_than_its_part() -> None:
    """Its server takes more items while a draw waits for them, although the writer's shard is full."""
    limiter = RateLimiterConfig(queue_size=8)
    config = make_config(sampler=KINDS[SelectorKind.FIFO], max_items=40, max_times_sampled=1, limiter=limiter)
    with local_shards(2, config) as servers:
        writer = threading.Thread(target=fill, args=(servers[0].address, 0, [1.0] * 24), daemon=True)
        writer.start()
        with sampling([s.address for s in servers], config, 12) as stream:
            assert [sorted(items_of(taken(stream)))[-1] for _ in range(2)] == [(0, 11), (0, 23)]
        writer.join()


@pytest.mark.parametrize("batch_size, told", [(20, 0), (21, 1)])
def test_batch_that_no_shard_can_give_alone_is_told(batch_size: int, told: int) -> None:
    """If all writers are on one of the shards, such a batch never comes."""
    config = make_config(sampler=KINDS[SelectorKind.FIFO], max_items=40, max_times_sampled=1)
    with (
        capture_logs() as logs,
        local_shards(2, config) as servers,
        sampling([server.address for server in servers], config, batch_size),
    ):
        pass
    assert [line["event"] for line in logs].count("each batch needs items of several replay shards") == told
