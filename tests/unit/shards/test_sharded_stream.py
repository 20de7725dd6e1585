"""The sampler of several shards, with shards that the test plays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pytest

from tests.support.clock import Clock
from tests.support.replay_shards import taken
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import AlreadyExists
from tidemill.replay.batch import SampledBatch
from tidemill.replay.reconnecting_call import ReconnectingCall
from tidemill.replay.sampling import sample_stream
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.sample_stream import SILENT_S, SampleStream
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb


class _Link:
    """A shard that answers when the test says so; its items all have the probability 1/8 within it."""

    links: ClassVar[dict[str, _Link]] = {}

    def __init__(
        self,
        name: str,
        address: str,
        table: TableConfig,
        opening: pb.SampleOpen,
        owner: SampleStream,
        *,
        deadline_s: float,
        must_exist: bool,
        came_later: bool,
        fencing_token: int,
    ) -> None:
        assert not must_exist
        assert not came_later
        assert not fencing_token
        assert not any((opening.allow_smaller, opening.item_counts))
        assert opening.settles == bool(table.max_times_sampled)
        assert opening.max_message_bytes > 0
        self.name, self.owner, self.cuts = name, owner, 0
        self.asked: deque[pb.Draw] = deque()
        self.is_stopped = False
        self.links[name] = self

    def start(self) -> None:
        """Nothing happens by itself."""

    def send(self, request: pb.SampleRequest) -> None:
        """Note what is asked."""
        self.asked.extend(request.draws)

    def cut(self) -> None:
        """Note that the call was given up."""
        self.cuts += 1

    def stop(self) -> None:
        """Note that the call ends."""
        self.is_stopped = True

    def close(self) -> None:
        """Here a silent server would be waited for: by now all calls have ended."""
        assert all(link.is_stopped for link in self.links.values())

    def answer(self, items: int = 8, total_weight: float = 8.0) -> None:
        """Answer everything that is asked, with the state of the table."""
        while self.asked:
            draw = self.asked.popleft()
            answer = pb.SampleResponse(table_items=items, total_weight=total_weight)
            answer.keys.extend(range(1, 1 + draw.items))
            answer.probabilities.extend([1 / 8] * draw.items)
            answer.first_rows.extend([0] * draw.items)
            answer.lengths.extend([1] * draw.items)
            self.owner.answered(self, answer)  # type: ignore[arg-type]

    def open(self, *, created: bool = False) -> None:
        """Open a call."""
        self.owner.opened(self, created)  # type: ignore[arg-type]

    def lose(self) -> None:
        """End it."""
        self.asked.clear()
        self.owner.lost(self)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[SampleStream]:
    """A sampler of shards 0, 1 and 2, all silent; its parameter is the table's `max_times_sampled`."""
    config = make_config(max_times_sampled=getattr(request, "param", 0))
    monkeypatch.setattr(sample_stream, "SampleCall", _Link)
    _Link.links.clear()
    rng = np.random.default_rng(4)
    with (
        closing(ShardDirectory(["a", "b", "c"])) as directory,
        closing(SampleStream(directory, config, 12, rng=rng, max_in_flight_batches=1, clock=clock)) as opened,
    ):
        # `take` raises what the stream's thread ended with, such as a link that cannot be made
        wait_until(lambda: opened.take(0.0) is None and len(_Link.links) == 3, "the three links")
        yield opened


def live(weights: dict[str, float]) -> list[_Link]:
    """Have shards answer for the first time; return them in order."""
    for shard, total_weight in weights.items():
        _Link.links[shard].open()
        _Link.links[shard].answer(total_weight=total_weight)
    return [_Link.links[shard] for shard in weights]


def shares(batch: SampledBatch) -> dict[int, float]:
    """Return by shard number the probability that its items report, times 8: the share of the shard."""
    return {int(incarnation): float(p) * 8 for (_, incarnation), p in zip(batch.keys, batch.probabilities, strict=True)}


def test_batch_is_asked_of_all_shards_by_mass(stream: SampleStream) -> None:
    """Masses 3, 2 and 1 give 6, 4 and 2 of 12 items, which report these shares."""
    links = live({"0": 3.0, "1": 2.0, "2": 1.0})
    wait_until(lambda: all(link.asked for link in links), "a part of each")
    assert [link.asked[0].items for link in links] == [6, 4, 2]
    for link, total_weight in zip(links, (3.0, 2.0, 1.0), strict=True):
        link.answer(total_weight=total_weight)
    assert shares(taken(stream)) == pytest.approx({0: 1 / 2, 1: 1 / 3, 2: 1 / 6})


@pytest.mark.parametrize("answered_before", [False, True])
def test_lost_part_of_a_batch_is_made_up_for(stream: SampleStream, answered_before: bool) -> None:
    """The others give what the lost shard was to give, and every item reports the share among those that are left."""
    first, second, third = live({"0": 3.0, "1": 2.0, "2": 1.0})
    wait_until(lambda: first.asked and second.asked and third.asked, "a part of each")
    if answered_before:
        second.answer(total_weight=2.0)
    third.answer(total_weight=1.0)
    first.lose()
    assert sum(draw.items for draw in (*second.asked, *third.asked)) == (6 if answered_before else 6 + 4)
    second.answer(total_weight=2.0)
    third.answer(total_weight=1.0)
    batch = taken(stream)
    assert len(batch.keys) == 12
    assert shares(batch) == pytest.approx({1: 2 / 3, 2: 1 / 3})


def test_batch_is_drawn_anew_when_all_shards_are_lost(stream: SampleStream) -> None:
    """Nobody is left to make up for it; the first shard that is back gives a whole one."""
    links = live({"0": 3.0, "1": 2.0, "2": 1.0})
    wait_until(lambda: all(link.asked for link in links), "a part of each")
    for link in links:
        link.lose()
    assert stream.client_of(0) is None
    live({"1": 2.0})
    assert shares(taken(stream)) == pytest.approx({1: 1.0})


def test_silent_shard_is_cut_and_one_that_is_asked_nothing_is_looked_at(stream: SampleStream, clock: Clock) -> None:
    """Silence counts from the oldest question without an answer; only a shard that owes one can be silent."""
    first, second, third = live({"0": 4.0, "1": 4.0, "2": 4.0})
    wait_until(lambda: first.asked and second.asked and third.asked, "a part of each")
    clock.now_s = 1.0
    first.answer()
    second.answer()
    clock.now_s = 2.0
    wait_until(lambda: first.asked and second.asked, "looks, as the batch waits for the third")
    assert {draw.items for draw in (*first.asked, *second.asked)} == {0}
    clock.now_s = SILENT_S + 0.5
    wait_until(lambda: third.cuts > 0, "the cut")
    assert (first.cuts, second.cuts) == (0, 0)


@pytest.mark.parametrize("stream", [1], indirect=True)
def test_shard_of_a_queue_that_waits_for_items_is_not_silent(stream: SampleStream, clock: Clock) -> None:
    """Another reader took the items it was asked for; it is cut once the others have enough to give in its place."""
    first, second, third = live({"0": 8.0, "1": 8.0, "2": 8.0})
    wait_until(lambda: first.asked and second.asked and third.asked, "a part of each")
    second.answer(items=4)
    third.answer(items=4)
    clock.now_s = SILENT_S + 0.5
    wait_until(lambda: second.asked and third.asked, "looks, after the first was judged")
    assert first.cuts == 0
    second.answer(items=8)
    wait_until(lambda: first.cuts > 0, "the cut")


def test_first_batch_waits_for_all_shards_but_not_for_long(stream: SampleStream, clock: Clock) -> None:
    """Two of three live shards are asked nothing but how they are, until the third has had its time."""
    first, second = live({"0": 4.0, "1": 4.0})
    assert not any(draw.items for draw in (*first.asked, *second.asked))
    clock.now_s = 5.5
    wait_until(lambda: any(draw.items for draw in (*first.asked, *second.asked)), "a batch of the two")


def test_refusal_of_one_shard_is_raised(stream: SampleStream) -> None:
    """Such as a table of another configuration."""
    live({"0": 4.0})
    stream.failed(AlreadyExists("the table differs"))
    with pytest.raises(AlreadyExists, match="the table differs"):
        stream.take(WAIT_S)


def test_closed_stream_gives_nothing_and_does_not_wait(stream: SampleStream) -> None:
    """Whoever waits in `take` gets None at once."""
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(stream.take(10 * WAIT_S)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    stream.close()
    waiting.join(WAIT_S)
    assert found == [None]


def test_silent_servers_of_a_queue_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that were all stopped may take half a second in all to tell their servers what was handed on."""
    waited_s = list[float]()

    def outlast(_: object, timeout_s: float) -> None:
        if timeout_s < 5:  # that of a call that was cut
            waited_s.append(timeout_s)
            time.sleep(timeout_s)

    monkeypatch.setattr(ReconnectingCall, "join", outlast)
    calls = [SampleCall(n, "127.0.0.1:1", make_config(), pb.SampleOpen(settles=True), Mock()) for n in "abc"]
    for call in calls:
        call.stop()
    for call in calls:
        call.close()
    assert len(waited_s) == 3
    assert sum(waited_s) <= 0.5
