"""Which episodes an actor plays, and how much it explores in them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tidemill.config.run import RunSettings
from tidemill.config.sections import ActorConfig
from tidemill.config.services import ActorSettings
from tidemill.rl.exploration import ActorSlot, epsilon_ladder
from tidemill.services.actor.__main__ import first_seed, training_seed
from tidemill.services.actor.actor_index import actor_index


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
    """Each start of each actor has its own seeds; the first has those of the run's seed alone."""
    seeds = [training_seed(1, index, epoch) for index in range(8) for epoch in range(64)]
    firsts = sorted(seeds)
    assert min(later - earlier for earlier, later in pairwise(firsts)) >= 1_000  # room for as many environments
    assert all(100_000_000 <= seed < 2**31 - 10_000 for seed in seeds)
    assert training_seed(1, 3, 0) == training_seed(1, 3)


def test_resumed_actor_plays_other_episodes_whatever_the_replay_service_knows() -> None:
    """Without its log, by the version of the parameters that the run continues from; the same resume repeats them."""

    def seed(continued_from: int, epoch: int = 0, actor_id: str = "actor-0") -> int:
        config = ActorConfig(run=RunSettings(continued_from=continued_from), actor=ActorSettings(id=actor_id))
        return first_seed(config, actor_id or "a1b2-7", 0, epoch)

    assert seed(0) == training_seed(1, 0)
    assert seed(7) == seed(7)
    assert len({seed(0), seed(7), seed(9), seed(7, epoch=5), seed(7, actor_id="")}) == 5


@pytest.mark.parametrize(
    "name", ["tidemill-actor-{}.tidemill_cluster", "tidemill_actor_{}.tidemill_cluster"], ids=["compose-2", "compose-1"]
)
def test_replicas_share_out_the_ladder_as_the_launchers_actors_do(name: str) -> None:
    """Four containers of three environments have the twelve epsilons of one ladder; a fifth begins again."""
    places = [actor_index(None, "a1b2-7", name.format(number)) for number in range(1, 6)]
    ladders = [epsilon_ladder(ActorSlot(place, 3, 4), base=0.4, alpha=7.0) for place in places]
    whole = epsilon_ladder(ActorSlot(0, 12, 1), base=0.4, alpha=7.0)
    np.testing.assert_allclose(np.concatenate(ladders[:4]), whole)
    np.testing.assert_allclose(ladders[4], ladders[0])
    assert len({training_seed(1, place) for place in places}) == 5


def test_container_without_a_number_in_its_name_draws_one() -> None:
    """A container started by hand has any name; its episodes are its own all the same."""
    assert actor_index(None, "a1b2-7", "explorer.tidemill_cluster") == actor_index(None, "a1b2-7")


def test_actors_of_many_environments_share_no_seed() -> None:
    """Environment i has the seed of the first plus i."""
    firsts = [training_seed(1, index, num_envs=2048) for index in range(4)]
    assert min(later - earlier for earlier, later in pairwise(firsts)) >= 2048
    assert training_seed(1, 3, num_envs=8) == training_seed(1, 3)
