"""When an actor may start another window: counted by hand, and as a cluster of actors and a learner."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tests.support.publishing import METADATA, NOON, encoding
from tidemill.errors import Unavailable
from tidemill.params.blob import pack
from tidemill.params.version import Params, Precision, Version
from tidemill.services.actor.acting.loop import PolicyParams, VersionPacer

KEEPS_ALL = cast(Any, SimpleNamespace(restarts=0, flush=lambda _: None))
"""A writer whose servers lose nothing."""


class Windows:
    """The windows that an actor starts with each version it is shown."""

    def __init__(self, per_version: int, publish_every: int, lead: int) -> None:
        """Start with none."""
        self.pacer = VersionPacer(per_version, publish_every, lead)

    def started(self, learner_steps: int, fencing_token: int = 1) -> int:
        """Return how many it starts before it has to wait."""
        count = 0
        while self.pacer.may_start(fencing_token, learner_steps):
            self.pacer.started()
            count += 1
        return count


def test_synchronous_actor_starts_what_one_version_needs() -> None:
    """Two windows of each environment with each version, and none before the next comes."""
    windows = Windows(2, 1, 0)
    assert [windows.started(step) for step in (0, 0, 1, 2, 4)] == [2, 0, 2, 2, 4]


def test_lead_is_given_once() -> None:
    """A lead of three versions starts three more at first, and one for each after that."""
    windows = Windows(1, 10, 3)
    assert [windows.started(step) for step in (0, 10, 20, 50)] == [4, 1, 1, 3]


@pytest.mark.parametrize("restarted_at", [95, 100, 103, 107])
def test_learner_that_starts_again_is_given_all_that_it_lost(restarted_at: int) -> None:
    """Counting begins again, also at a checkpoint between two versions: the updates up to the next have no items."""
    windows = Windows(1, 10, 0)
    assert [windows.started(step) for step in (90, 100)] == [1, 1]
    started = [windows.started(step, fencing_token=2) for step in (restarted_at, restarted_at // 10 * 10 + 10)]
    assert started == [1, 1]


def test_restarted_learner_is_known_by_the_fencing_token_of_its_versions() -> None:
    """The versions of a learner that is killed after update 107 and continues from its checkpoint of update 103."""
    published = [(1, 90), (1, 100), (2, 103), (2, 110)]
    blob, stop, newest = pack({}), threading.Event(), list[Params]()
    watcher = SimpleNamespace(newest=lambda: newest[-1], wait=lambda *_, **__: stop.set())
    params = PolicyParams(cast(Any, watcher), cast(Any, SimpleNamespace(load=lambda _: None)))
    pacer = VersionPacer(1, 10, 0)
    for number, (token, steps) in enumerate(published, 1):
        metadata = replace(METADATA, learner_steps=steps)
        newest.append(
            Params(Version(number, number - 1, token, NOON, metadata, (encoding(blob),)), Precision.FULL, blob)
        )
        assert pacer.wait(params, KEEPS_ALL, stop), steps
    assert not pacer.wait(params, KEEPS_ALL, stop)


def test_actor_that_outlives_its_run_takes_the_versions_of_the_next() -> None:
    """They are numbered from 1 again, and so are the updates and fencing tokens; numbers may be equal."""
    published = [(1, 90), (2, 100), (3, 110), (1, 0), (1, 0), (2, 10)]
    blob, stop, newest, loaded = pack({}), threading.Event(), list[Params](), list[int]()
    watcher = SimpleNamespace(newest=lambda: newest[-1], wait=lambda *_, **__: stop.set())
    policy = SimpleNamespace(load=lambda _: loaded.append(newest[-1].number))
    params, pacer = PolicyParams(cast(Any, watcher), cast(Any, policy)), VersionPacer(1, 10, 0)
    for count, (number, steps) in enumerate(published, 1):
        metadata = replace(METADATA, learner_steps=steps)
        newest.append(Params(Version(number, 0, 1, NOON, metadata, (encoding(blob),)), Precision.FULL, blob))
        params.refresh()
        params.refresh()
        assert len(loaded) == count
        if count != 5:  # a window with each version of each run
            assert pacer.wait(params, KEEPS_ALL, stop), steps
    assert not pacer.wait(params, KEEPS_ALL, stop)


def test_actor_starts_again_what_the_replay_service_may_have_lost() -> None:
    """Its streams restart in the middle of an item, or while it waits: the learner lacks those of this version."""
    waits, restarts, stop = list[float](), 0, threading.Event()

    def flush(timeout_s: float) -> None:
        nonlocal restarts
        waits.append(timeout_s)
        restarts += len(waits) == 3
        raise Unavailable("the shard is away")

    class Lossy:
        restarts = property(lambda _: restarts)

    writer = cast(Any, Lossy())
    writer.flush = flush
    watcher = SimpleNamespace(newest=lambda: None, wait=lambda *_, **__: stop.set() if len(waits) > 5 else None)
    params = PolicyParams(cast(Any, watcher), cast(Any, None), fencing_token=1)
    pacer = VersionPacer(1, 1, 0)
    assert pacer.wait(params, writer, stop)
    restarts = 1
    assert pacer.wait(params, writer, stop)
    assert not waits
    assert pacer.wait(params, writer, stop)
    assert restarts == 2
    assert not pacer.wait(params, writer, stop)


def test_wait_for_a_version_counts_as_time_of_the_actor() -> None:
    """Otherwise neither side would seem to wait where the updates are the limit."""
    read = partial(REGISTRY.get_sample_value, "tidemill_actor_seconds_total", {"part": "wait"})
    before, stop = read() or 0.0, threading.Event()

    def wait(*_: object, **__: object) -> None:
        stop.wait(0.05)
        stop.set()

    watcher = SimpleNamespace(newest=lambda: None, wait=wait)
    params = PolicyParams(cast(Any, watcher), cast(Any, None), fencing_token=1)
    pacer = VersionPacer(1, 1, 0)
    assert pacer.wait(params, KEEPS_ALL, stop)
    assert params.waited_s == 0.0
    assert not pacer.wait(params, KEEPS_ALL, stop)
    assert 0.05 <= params.waited_s < 60.0
    assert (read() or 0.0) - before == pytest.approx(params.waited_s)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.randoms(use_true_random=False))
@pytest.mark.parametrize("publish_every", [1, 2])
def test_no_item_is_older_than_actors_times_lead(
    publish_every: int, actors: int, envs: int, lead: int, per_version: int, random: object
) -> None:
    """Whatever the order in which actors and learner get on, and none of them waits for ever."""
    total, batch = actors * envs, actors * envs * per_version // publish_every
    if batch * publish_every != total * per_version:
        return
    pacers = [VersionPacer(per_version, publish_every, lead) for _ in range(actors)]
    acting: list[int | None] = [None] * actors  # the version an unfinished window was started with
    queue: list[int] = []
    steps, oldest = 0, 0
    while steps < 30:
        version = 1 + steps // publish_every
        able = [
            actor
            for actor in range(actors)
            if acting[actor] is not None or pacers[actor].may_start(1, steps - steps % publish_every)
        ]
        choices: list[int] = [*able, *([actors] if len(queue) >= batch else [])]
        assert choices, "everyone waits for another"
        chosen = random.choice(choices)  # type: ignore[attr-defined]
        if chosen == actors:
            oldest = max(oldest, *(version - item for item in queue[:batch]))
            del queue[:batch]
            steps += 1
        elif (started_with := acting[chosen]) is None:
            pacers[chosen].started()
            acting[chosen] = version
        else:
            queue += [started_with] * envs
            acting[chosen] = None
    assert oldest <= actors * lead
