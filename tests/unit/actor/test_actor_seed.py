"""Which episodes an actor plays."""

from __future__ import annotations

from itertools import pairwise

from services.actor.__main__ import actor_index, training_seed


def test_index_that_was_set_is_kept() -> None:
    """A launcher counts its actors itself, whatever they are called."""
    assert actor_index(3, "actor-3") == 3
    assert actor_index(0, "actor-3") == 0


def test_replicas_without_an_index_play_other_episodes() -> None:
    """Containers of one image differ in their host name; the same name plays the same episodes again."""
    names = [f"{host:012x}-7" for host in range(64)]
    seeds = {training_seed(1, actor_index(None, name)) for name in names}
    assert len(seeds) == len(names)
    assert actor_index(None, "a-1") == actor_index(None, "a-1")
    assert all(100_000_000 <= seed < 2**31 - 10_000 for seed in seeds)  # what the Atari emulator takes


def test_restarted_actor_plays_other_episodes() -> None:
    """Each life of each actor has seeds of its own; the first has those of the run's seed alone."""
    seeds = [training_seed(1, index, epoch) for index in range(8) for epoch in range(64)]
    firsts = sorted(seeds)
    assert min(later - earlier for earlier, later in pairwise(firsts)) >= 1_000  # room for as many environments
    assert all(100_000_000 <= seed < 2**31 - 10_000 for seed in seeds)
    assert training_seed(1, 3, 0) == training_seed(1, 3)
