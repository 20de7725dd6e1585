"""Rendezvous hashing: stable, minimal in what it moves, and even."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.replay.shards.placement import ranked

NAMES = st.text("abc-.:/019", min_size=1, max_size=12)


@given(NAMES, st.lists(NAMES, unique=True, min_size=1, max_size=8), st.randoms())
def test_order_depends_on_nothing_but_the_set_of_shards(key: str, shards: list[str], random: object) -> None:
    """However the shards are listed, each comes once and in the same place."""
    shuffled = sorted(shards, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert ranked(key, shuffled) == ranked(key, [*shards, shards[0]])
    assert sorted(ranked(key, shards)) == sorted(shards)


@given(NAMES, st.lists(NAMES, unique=True, min_size=2, max_size=8), st.data())
def test_shard_that_leaves_moves_nobody_else(key: str, shards: list[str], data: st.DataObject) -> None:
    """Without one shard the order of the others is as before: only its own keys get another first choice."""
    gone = data.draw(st.sampled_from(shards))
    left = [shard for shard in shards if shard != gone]
    assert ranked(key, left) == tuple(shard for shard in ranked(key, shards) if shard != gone)


def test_actors_spread_evenly() -> None:
    """Of 3,000 actors each of three shards is the first choice of about a third: chi-square below 13.8 (p = 0.001)."""
    first = Counter(ranked(f"actor-{i}", ["replay-0", "replay-1", "replay-2"])[0] for i in range(3000))
    assert sum((count - 1000) ** 2 / 1000 for count in first.values()) < 13.8


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_launchers_first_actors_leave_no_shard_without_work(shards: int) -> None:
    """As many actors as shards take one each; twice as many, or eight, differ by one at most."""
    names = [str(shard) for shard in range(shards)]
    for actors in (shards, 2 * shards, 8):
        loads = Counter(ranked(f"actor-{i}", names)[0] for i in range(actors))
        assert max(loads.values()) - min(loads[name] for name in names) <= (0 if actors == shards else 1)


def test_order_is_the_same_in_another_process() -> None:
    """Python's own hashes differ between processes; this one does not."""
    code = "from tidemill.replay.shards.placement import ranked; print(ranked('actor-0', 'abcdef'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert other.stdout.strip() == str(ranked("actor-0", "abcdef"))
