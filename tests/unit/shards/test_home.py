"""Which shard an actor writes to: when it leaves, where it goes, when it returns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.replay.shards.placement import DEAD_S, PATIENCE_S, ShardPlacement, ranked

SHARDS = ("0", "1", "2")
FIRST, SECOND, THIRD = ranked("actor", SHARDS)


def home_at(shard: str) -> ShardPlacement:
    """Return the placement of an actor that writes to a shard, about which nothing else is known."""
    placement = ShardPlacement("actor")
    placement.moved(shard)
    return placement


def told(placement: ShardPlacement, shard: str, since_s: float, until_s: float, *, answered: bool) -> None:
    """Tell of a question each second."""
    for asked_s in range(int(since_s), int(until_s) + 1):
        placement.record_probe(shard, asked_s, answered=answered)


def test_first_choice_is_by_hash() -> None:
    """Nothing is known yet: the first in order is tried; without shards there is none."""
    placement = ShardPlacement("actor")
    assert placement.choose([]) is None
    assert placement.choose(SHARDS) == FIRST
    assert placement.to_probe(SHARDS) == (FIRST, SECOND, THIRD)


def test_shard_that_is_silent_for_a_while_is_left_for_the_next_that_answers() -> None:
    """One second before the bound the actor stays; at it, it goes to the first of the others that answers."""
    placement = home_at(FIRST)
    told(placement, FIRST, 0, DEAD_S - 1, answered=False)
    told(placement, THIRD, 0, DEAD_S, answered=True)
    placement.record_probe(SECOND, 0.0, answered=False)
    assert placement.to_probe(SHARDS) == (FIRST, SECOND, THIRD)
    assert placement.choose(SHARDS) == FIRST
    placement.record_probe(FIRST, DEAD_S, answered=False)
    assert placement.is_dead
    assert placement.choose(SHARDS) == THIRD


def test_one_late_look_at_a_failed_question_is_not_death() -> None:
    """An actor that was busy for an hour has asked only once: the shard is not dead by that."""
    placement = home_at(FIRST)
    placement.record_probe(FIRST, 0.0, answered=False)
    assert not placement.is_dead
    placement.record_probe(FIRST, 3600.0, answered=True)
    assert not placement.is_dead


def test_dead_shard_is_kept_while_no_other_answers() -> None:
    """Moving would only lose what it may still acknowledge."""
    placement = home_at(FIRST)
    told(placement, FIRST, 0, DEAD_S, answered=False)
    assert placement.choose(SHARDS) == FIRST


def test_actor_returns_when_its_first_shard_is_well_for_long_enough() -> None:
    """Twice the patience after a fault; an unanswered question in between starts it again."""
    placement = home_at(FIRST)
    told(placement, FIRST, 0, DEAD_S, answered=False)
    placement.record_probe(SECOND, 0.0, answered=True)
    placement.moved(SECOND)
    assert placement.to_probe(SHARDS) == (FIRST, SECOND)
    told(placement, FIRST, 10, 10 + 2 * PATIENCE_S - 1, answered=True)
    assert placement.choose(SHARDS) == SECOND
    placement.record_probe(FIRST, 10 + 2 * PATIENCE_S, answered=False)
    told(placement, FIRST, 100, 100 + 2 * PATIENCE_S - 1, answered=True)
    assert placement.choose(SHARDS) == SECOND
    placement.record_probe(FIRST, 100 + 2 * PATIENCE_S, answered=True)
    assert placement.choose(SHARDS) == FIRST


def test_patience_doubles_with_every_fault_up_to_eight_minutes() -> None:
    """A shard that comes and goes keeps its actors away for longer and longer."""
    placement, waits = home_at(FIRST), []
    for life in range(7):
        start = life * 10_000
        told(placement, FIRST, start, start + DEAD_S, answered=False)
        placement.moved(SECOND)
        wait = next(s for s in range(5000) if _answers(placement, start + 100, s) == FIRST)
        waits.append(wait)
        placement.moved(FIRST)
    assert waits == [30, 60, 120, 240, 480, 480, 480]


def _answers(placement: ShardPlacement, start: float, after: int) -> str | None:
    placement.record_probe(FIRST, start + after, answered=True)
    return placement.choose(SHARDS)


def test_new_shard_takes_over_after_the_patience() -> None:
    """A shard that joins and is first by hash gets the actor once it has answered for a while."""
    placement = home_at(SECOND)
    told(placement, FIRST, 0, PATIENCE_S - 1, answered=True)
    assert placement.choose(SHARDS) == SECOND
    placement.record_probe(FIRST, PATIENCE_S, answered=True)
    assert placement.choose(SHARDS) == FIRST


@given(
    st.lists(
        st.tuples(st.sampled_from(SHARDS), st.floats(0.01, 5.0), st.booleans()),
        max_size=200,
    )
)
def test_actor_never_leaves_for_a_shard_that_does_not_answer(events: list[tuple[str, float, bool]]) -> None:
    """A move goes to a shard whose newest question was answered, away from a dead one or one later by hash."""
    placement, now, newest = home_at(FIRST), 0.0, {FIRST: True}
    for shard, pause, answered in events:
        now += pause
        placement.record_probe(shard, now, answered=answered)
        newest[shard] = answered
        chosen, order = placement.choose(SHARDS), ranked("actor", SHARDS)
        assert chosen is not None
        assert placement.shard is not None
        if chosen != placement.shard:
            assert newest[chosen]
            assert placement.is_dead or order.index(chosen) < order.index(placement.shard)
            placement.moved(chosen)
