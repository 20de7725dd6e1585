"""Three replay shards as processes, one of which dies, freezes and comes back under load."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.process.shards import COUNT, TABLE, Shards, Taker, Writer, writers
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.shards.directory import ShardDirectory

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def shards() -> Iterator[Shards]:
    """Three servers that keep their tables in logs."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder, closing(Shards(Path(folder))) as running:
        yield running


@pytest.fixture
def directory(shards: Shards) -> Iterator[ShardDirectory]:
    """Their addresses."""
    with closing(ShardDirectory(shards.addresses, COUNT)) as opened:
        yield opened


@pytest.fixture
def stream(directory: ShardDirectory) -> Iterator[SampleStream]:
    """A sampler of all three."""
    with closing(SampleStream(directory, TABLE, 32, rng=np.random.default_rng(2))) as opened:
        yield opened


def live(stream: SampleStream) -> list[str]:
    """Return the names of the shards that are sampled."""
    return [report.name for report in stream.shards() if report.live]


def assert_nothing_twice(stored: dict[str, list[tuple[int, int]]]) -> None:
    """Fail if an item is in the union of the shards more than once."""
    counts = Counter(item for items in stored.values() for item in items)
    assert [item for item, count in counts.items() if count > 1] == []


def assert_acknowledged_is_stored(stored: dict[str, list[tuple[int, int]]], everybody: list[Writer]) -> None:
    """Fail if an acknowledged item is not on the shard that acknowledged it."""
    for writer in everybody:
        for life in writer.lives:
            missing = life.items - set(stored[life.shard])
            assert not missing, f"{writer.name} misses {len(missing)} items of shard {life.shard}"


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "frozen"])
def test_lost_shard_is_left_out_and_taken_back(
    shards: Shards, directory: ShardDirectory, stream: SampleStream, is_killed: bool
) -> None:
    """Batches continue, its writers move away; nothing is twice, nothing acknowledged is lost.

    The writers of one that was killed return to it. One that froze is noticed although no connection breaks; messages
    that lay in its buffers are stored late, and once: nobody sent them elsewhere.
    """
    with writers(directory, 6) as everybody:
        wait_until(lambda: live(stream) == ["0", "1", "2"], "all shards")
        taker = Taker(stream)
        wait_until(lambda: taker.batches > 20, "batches")
        victim = everybody[0].shard
        moving = [writer for writer in everybody if writer.shard == victim]
        if is_killed:
            shards.kill(victim)
        else:
            shards.signal(victim, signal.SIGSTOP)
        wait_until(lambda: victim not in live(stream), "the shard to be left out")
        wait_until(lambda: all(writer.shard != victim for writer in moving), "its writers to move")
        before = taker.batches
        wait_until(lambda: taker.batches > before + 20, "batches without it")
        if is_killed:
            shards.start(victim)
        else:
            shards.signal(victim, signal.SIGCONT)
        wait_until(lambda: victim in live(stream), "the shard to be taken back")
        if is_killed:
            wait_until(lambda: all(writer.shard == victim for writer in moving), "its writers to return", 2 * WAIT_S)
            before = samples_of(stream, victim)
            wait_until(lambda: samples_of(stream, victim) > before, "samples of what it holds now")
        taker.stop()
        for writer in everybody:
            writer.stop()
        stored = shards.stored()
        assert_nothing_twice(stored)
        assert_acknowledged_is_stored(stored, everybody)


def test_closing_beside_a_frozen_shard_takes_a_bounded_time(shards: Shards, directory: ShardDirectory) -> None:
    """Neither a writer with a full window of unacknowledged chunks nor a sampler hangs in `close`."""

    def close_all() -> None:
        for writer in everybody:
            writer.close()
        stream.close()

    with (
        closing(SampleStream(directory, TABLE, 32, rng=np.random.default_rng(2))) as stream,
        writers(directory, 3) as everybody,
    ):
        wait_until(lambda: len(live(stream)) == COUNT, "all shards")
        assert stream.take(WAIT_S) is not None
        for shard in range(COUNT):
            shards.signal(str(shard), signal.SIGSTOP)
        wait_until(lambda: all(writer.appender.unacknowledged_chunks == 8 for writer in everybody), "full windows")
        closing_all = threading.Thread(target=close_all, daemon=True)
        closing_all.start()
        closing_all.join(WAIT_S)
        assert not closing_all.is_alive()


def samples_of(stream: SampleStream, shard: str) -> int:
    """Return how many items a shard has given."""
    return next(report.samples for report in stream.shards() if report.name == shard)
