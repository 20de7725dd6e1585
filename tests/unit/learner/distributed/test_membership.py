"""How ranks agree that they are of one life, whatever is left of the lives before."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch exports it by a star

from tidemill.services.learner.distributed.membership import GroupMembership


@pytest.fixture
def store() -> HashStore:
    """The ranks' store, empty."""
    return HashStore()


def _agree(*ranks: GroupMembership) -> set[str | None]:
    """Return the ranks' final states after each had two turns to speak and one to hear."""
    for _ in range(2):
        for rank in ranks:
            rank.poll()
    return {rank.poll() for rank in ranks}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_ranks_that_come_in_any_order_agree(store: HashStore, order: tuple[int, ...]) -> None:
    """All have one name for their life, once all are there and not before."""
    ranks = {index: GroupMembership(store, index, 3) for index in range(3)}
    *early, last = (ranks[index] for index in order)
    assert _agree(*early) == {None}
    (life,) = _agree(*early, last)
    assert life


def test_every_start_of_all_ranks_is_another_life(store: HashStore) -> None:
    """Though the store is the same."""
    lives = [_agree(GroupMembership(store, 0, 2), GroupMembership(store, 1, 2)) for _ in range(3)]
    assert all(len(life) == 1 for life in lives)
    assert len(set().union(*lives)) == 3


def test_rank_that_was_started_alone_waits_for_the_next_call(store: HashStore) -> None:
    """It is in no life of the rank it replaces; when rank 0 is started too, both are in a new one."""
    (before,) = _agree(GroupMembership(store, 0, 2), GroupMembership(store, 1, 2))
    anew = GroupMembership(store, 1, 2)
    assert _agree(anew) == {None}
    (life,) = _agree(GroupMembership(store, 0, 2), anew)
    assert life not in {None, before}


def test_call_of_a_rank_0_that_died_is_answered_in_vain(store: HashStore) -> None:
    """Its successor's call is the one that counts."""
    dead, other = GroupMembership(store, 0, 2), GroupMembership(store, 1, 2)
    dead.poll()
    assert other.poll() is None
    (life,) = _agree(GroupMembership(store, 0, 2), other)
    assert life is not None


def test_rank_that_died_after_its_answer_is_no_member(store: HashStore) -> None:
    """Rank 0 may count it in; the one in its place does not believe that it is meant itself."""
    first, dead = GroupMembership(store, 0, 2), GroupMembership(store, 1, 2)
    first.poll()
    dead.poll()
    assert first.poll() is not None
    anew = GroupMembership(store, 1, 2)
    assert _agree(anew) == {None}


def test_missing_ranks_are_named(store: HashStore) -> None:
    """By rank 0 those without an answer, by the others rank 0."""
    first, second = GroupMembership(store, 0, 4), GroupMembership(store, 2, 4)
    first.poll()
    second.poll()
    assert first.missing() == "no answer of rank 1, 3"
    assert second.missing() == "rank 0 has not called all ranks together"
