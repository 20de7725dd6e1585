"""What every environment promises of its streams, played by both implementations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tidemill.envs.interface import Tick, VectorEnv
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import InvalidArgument

PLAYED = {
    "terminates": (EnvSettings("tests.envs_for_tests:counting"), 3000),
    "truncates": (EnvSettings("tests.envs_for_tests:counting", {"end": "truncated"}), 3000),
    "both_at_once": (EnvSettings("tests.envs_for_tests:counting", {"end": "both", "length": 1}), 1000),
    "cartpole": (EnvSettings("CartPole-v1", max_episode_steps=20), 3000),
    "lander": (EnvSettings("LunarLanderContinuous-v3", max_episode_steps=80), 600),
    "breakout": (EnvSettings("ALE/Breakout-v5"), 500),
    "breakout_cut": (EnvSettings("ALE/Breakout-v5", max_frames=400), 400),
    "breakout_full_games": (EnvSettings("ALE/Breakout-v5", episodic_life=False), 400),
    "sticky_pong": (EnvSettings("ALE/Pong-v5", sticky_actions=0.25, max_episode_steps=50), 200),
}


def random_action(env: VectorEnv, rng: np.random.Generator) -> NDArray[np.generic]:
    """Return a uniformly random batch of actions."""
    if env.spec.is_discrete:
        return rng.integers(0, env.spec.num_actions, env.num_envs)
    return rng.uniform(-1, 1, (env.num_envs, *env.spec.action_shape)).astype(np.float32)


def play(settings: EnvSettings, num_ticks: int, *, seed: int = 7, training: bool = True) -> list[Tick]:
    """Return the ticks of random play."""
    env = make_env(settings, 2 if settings.is_atari else 4, training=training)
    rng = np.random.default_rng(seed)
    env.reset(seed)
    ticks = [env.step(random_action(env, rng)) for _ in range(num_ticks)]
    env.close()
    return ticks


@pytest.fixture(scope="module", params=PLAYED)
def ticks(request: pytest.FixtureRequest) -> list[Tick]:
    """The ticks of each environment, played once."""
    settings, num_ticks = PLAYED[request.param]
    return play(settings, num_ticks)


def column(ticks: list[Tick], name: str) -> NDArray[np.bool_]:
    """Return a flag of all ticks, [T, N]."""
    return np.stack([getattr(tick, name) for tick in ticks])


def test_tick_has_the_shapes_and_dtypes_of_the_interface(ticks: list[Tick]) -> None:
    """Flags are bool [N], rewards float32 [N], observations [N, ...] of uint8 or float32."""
    tick = ticks[-1]
    for name in ("terminated", "truncated", "is_first", "was_reset"):
        flag = getattr(tick, name)
        assert flag.shape == tick.reward.shape
        assert flag.dtype == np.bool_
    assert tick.reward.dtype == np.float32
    assert tick.observation.shape[:1] == tick.reward.shape
    assert tick.observation.dtype in (np.uint8, np.float32)


def test_reset_follows_every_truncation_and_nothing_but_an_end(ticks: list[Tick]) -> None:
    """A truncated tick is followed by a reset tick; a reset tick follows an end, and never another reset."""
    was_reset = column(ticks, "was_reset")
    terminated, truncated = column(ticks, "terminated"), column(ticks, "truncated")
    assert was_reset[1:][truncated[:-1]].all()
    assert (terminated | truncated)[:-1][was_reset[1:]].all()
    assert not (was_reset[1:] & was_reset[:-1]).any()
    assert was_reset.any()


def test_terminated_row_is_followed_by_a_final_row_or_a_first_row(ticks: list[Tick]) -> None:
    """The observation after a terminated row is first itself, or belongs to a row that a reset completes."""
    terminated, is_first = column(ticks, "terminated"), column(ticks, "is_first")
    continues = terminated[:-1] & ~column(ticks, "was_reset")[1:]
    assert is_first[:-1][continues].all()


def test_observation_is_first_exactly_after_a_reset_or_a_lost_life(ticks: list[Tick]) -> None:
    """`is_first` is set by a reset, or together with a termination that needs none."""
    is_first, was_reset = column(ticks, "is_first"), column(ticks, "was_reset")
    assert is_first[was_reset].all()
    assert column(ticks, "terminated")[is_first & ~was_reset].all()


def test_reset_tick_brings_no_reward_and_no_end(ticks: list[Tick]) -> None:
    """A final row has reward 0 and does not end again."""
    was_reset = column(ticks, "was_reset")
    assert (column(ticks, "reward")[was_reset] == 0).all()
    assert not column(ticks, "terminated")[was_reset].any()
    assert not column(ticks, "truncated")[was_reset].any()


def test_summaries_account_for_every_decision_of_real_episodes(ticks: list[Tick]) -> None:
    """Each reset is preceded by one summary, whose length is the decisions since the reset before."""
    was_reset = column(ticks, "was_reset")
    decisions = np.zeros(was_reset.shape[1], int)
    for tick, next_was_reset in zip(ticks, was_reset[1:], strict=False):
        decisions += ~tick.was_reset
        ended = {episode.env_index: episode.length for episode in tick.episodes}
        assert sorted(ended) == np.flatnonzero(next_was_reset).tolist()
        assert all(decisions[index] == length for index, length in ended.items())
        decisions[list(ended)] = 0


@pytest.mark.parametrize("name", ["cartpole", "lander", "breakout", "sticky_pong"])
def test_same_seed_and_actions_give_the_same_ticks(name: str) -> None:
    """Two runs with one seed agree in every byte; another seed gives something else."""
    settings = PLAYED[name][0]
    first, second, other = play(settings, 120), play(settings, 120), play(settings, 120, seed=8)
    for one, two in zip(first, second, strict=True):
        assert one.observation.tobytes() == two.observation.tobytes()
        assert one.reward.tobytes() == two.reward.tobytes()
        assert one.terminated.tobytes() == two.terminated.tobytes()
    assert any(a.observation.tobytes() != b.observation.tobytes() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["lander", "breakout"])
def test_arrays_of_a_tick_stay_as_they_were(name: str) -> None:
    """The caller may keep a tick's arrays: later steps do not write into them."""
    env = make_env(PLAYED[name][0], 2, training=True)
    rng = np.random.default_rng(0)
    kept = [env.reset(1)]
    for _ in range(60):
        tick = env.step(random_action(env, rng))
        kept += [tick.observation, tick.reward, tick.terminated, tick.is_first, tick.was_reset]
    copies = [array.copy() for array in kept]
    env.step(random_action(env, rng))
    env.reset(2)
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLanderContinuous-v3", "ALE/Pong-v5"])
def test_reset_in_the_middle_of_episodes_starts_all_anew(env_id: str) -> None:
    """After `reset`, even where an episode had just ended, play is that of a fresh environment."""
    settings = EnvSettings(env_id, max_episode_steps=10)
    env = make_env(settings, 2, training=True)
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        observation = env.reset(5)
        ticks = [env.step(random_action(env, rng)) for _ in range(10)]  # the tenth one is truncated
        assert all(tick.was_reset.sum() == 0 for tick in ticks[:5])
        runs.append([observation, *(tick.observation for tick in ticks)])
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("env_id", ["LunarLanderContinuous-v3", "ALE/Pong-v5"])
def test_bad_action_batch_is_refused(env_id: str) -> None:
    """A batch for another number of environments is refused with both shapes in the message."""
    env = make_env(EnvSettings(env_id), 2, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=r"action has shape \(3,.*allowed: \(2,"):
        env.step(np.zeros((3, *env.spec.action_shape), env.spec.action_dtype))
