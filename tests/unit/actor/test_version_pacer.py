"""When an actor may start another window: counted by hand, and as a cluster of actors and a learner."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.publishing import METADATA, NOON, encoding
from tidemill.params.blob import pack
from tidemill.params.version import Params, Precision, Version
from tidemill.services.actor.acting.loop import PolicyParams, VersionPacer


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
        assert pacer.wait(params, stop), steps
    assert not pacer.wait(params, stop)


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
