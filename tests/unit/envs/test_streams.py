"""Promises of every environment about its streams, tested on both implementations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tidemill.envs.interface import VectorEnv, VectorStep
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import InvalidArgument

PLAYED = {
    "terminates": (EnvSettings("tests.support.envs:counting"), 3000),
    "truncates": (EnvSettings("tests.support.envs:counting", {"end": "truncated"}), 3000),
    "both_at_once": (EnvSettings("tests.support.envs:counting", {"end": "both", "length": 1}), 1000),
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


def play(settings: EnvSettings, num_steps: int, *, seed: int = 7, training: bool = True) -> list[VectorStep]:
    """Return the steps of random play."""
    env = make_env(settings, 2 if settings.is_atari else 4, training=training)
    rng = np.random.default_rng(seed)
    env.reset(seed)
    steps = [env.step(random_action(env, rng)) for _ in range(num_steps)]
    env.close()
    return steps


LANDER = pytest.mark.requires_box2d


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=LANDER) if name == "lander" else name for name in PLAYED]
)
def steps(request: pytest.FixtureRequest) -> list[VectorStep]:
    """The steps of each environment, played once."""
    settings, num_steps = PLAYED[request.param]
    return play(settings, num_steps)


def column(steps: list[VectorStep], name: str) -> NDArray[np.bool_]:
    """Return a flag of all steps, [T, N]."""
    return np.stack([getattr(step, name) for step in steps])


def test_step_has_the_shapes_and_dtypes_of_the_interface(steps: list[VectorStep]) -> None:
    """Flags are bool [N], rewards float32 [N], observations [N, ...] of uint8 or float32."""
    step = steps[-1]
    for name in ("terminated", "truncated", "is_first", "is_reset_step"):
        flag = getattr(step, name)
        assert flag.shape == step.reward.shape
        assert flag.dtype == np.bool_
    assert step.reward.dtype == np.float32
    assert step.observation.shape[:1] == step.reward.shape
    assert step.observation.dtype in (np.uint8, np.float32)


def test_reset_follows_every_truncation_and_nothing_but_an_end(steps: list[VectorStep]) -> None:
    """A truncated step is followed by a reset step; a reset step follows an end, and never another reset."""
    is_reset_step = column(steps, "is_reset_step")
    terminated, truncated = column(steps, "terminated"), column(steps, "truncated")
    assert is_reset_step[1:][truncated[:-1]].all()
    assert (terminated | truncated)[:-1][is_reset_step[1:]].all()
    assert not (is_reset_step[1:] & is_reset_step[:-1]).any()
    assert is_reset_step.any()


def test_terminated_row_is_followed_by_a_final_row_or_a_first_row(steps: list[VectorStep]) -> None:
    """The observation after a terminated row is first itself, or belongs to a row that a reset completes."""
    terminated, is_first = column(steps, "terminated"), column(steps, "is_first")
    continues = terminated[:-1] & ~column(steps, "is_reset_step")[1:]
    assert is_first[:-1][continues].all()


def test_observation_is_first_exactly_after_a_reset_or_a_lost_life(steps: list[VectorStep]) -> None:
    """`is_first` is set by a reset, or together with a termination that needs none."""
    is_first, is_reset_step = column(steps, "is_first"), column(steps, "is_reset_step")
    assert is_first[is_reset_step].all()
    assert column(steps, "terminated")[is_first & ~is_reset_step].all()


def test_reset_step_brings_no_reward_and_no_end(steps: list[VectorStep]) -> None:
    """A final observation step has reward 0 and does not end again."""
    is_reset_step = column(steps, "is_reset_step")
    assert (column(steps, "reward")[is_reset_step] == 0).all()
    assert not column(steps, "terminated")[is_reset_step].any()
    assert not column(steps, "truncated")[is_reset_step].any()


def test_summaries_account_for_every_decision_of_real_episodes(steps: list[VectorStep]) -> None:
    """Each reset is preceded by one summary, whose length is the decisions since the reset before."""
    is_reset_step = column(steps, "is_reset_step")
    decisions = np.zeros(is_reset_step.shape[1], int)
    for step, next_is_reset in zip(steps, is_reset_step[1:], strict=False):
        decisions += ~step.is_reset_step
        ended = {episode.env_index: episode.length for episode in step.episodes}
        assert sorted(ended) == np.flatnonzero(next_is_reset).tolist()
        assert all(decisions[index] == length for index, length in ended.items())
        decisions[list(ended)] = 0


@pytest.mark.parametrize("name", ["cartpole", pytest.param("lander", marks=LANDER), "breakout", "sticky_pong"])
def test_same_seed_and_actions_give_the_same_ticks(name: str) -> None:
    """Two runs with one seed agree in every byte; another seed gives something else."""
    settings = PLAYED[name][0]
    first, second, other = play(settings, 120), play(settings, 120), play(settings, 120, seed=8)
    for one, two in zip(first, second, strict=True):
        assert one.observation.tobytes() == two.observation.tobytes()
        assert one.reward.tobytes() == two.reward.tobytes()
        assert one.terminated.tobytes() == two.terminated.tobytes()
    assert any(a.observation.tobytes() != b.observation.tobytes() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", [pytest.param("lander", marks=LANDER), "breakout"])
def test_arrays_of_a_tick_stay_as_they_were(name: str) -> None:
    """The caller may keep a step's arrays: later steps do not write into them."""
    env = make_env(PLAYED[name][0], 2, training=True)
    rng = np.random.default_rng(0)
    kept = [env.reset(1)]
    for _ in range(60):
        step = env.step(random_action(env, rng))
        kept += [step.observation, step.reward, step.terminated, step.is_first, step.is_reset_step]
    copies = [array.copy() for array in kept]
    env.step(random_action(env, rng))
    env.reset(2)
    assert all(np.array_equal(array, copy) for array, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", pytest.param("LunarLanderContinuous-v3", marks=LANDER), "ALE/Pong-v5"]
)
def test_reset_in_the_middle_of_episodes_starts_all_anew(env_id: str) -> None:
    """After `reset`, even where an episode had just ended, play is that of a fresh environment."""
    settings = EnvSettings(env_id, max_episode_steps=10)
    env = make_env(settings, 2, training=True)
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        observation = env.reset(5)
        steps = [env.step(random_action(env, rng)) for _ in range(10)]  # the tenth one is truncated
        assert all(step.is_reset_step.sum() == 0 for step in steps[:5])
        runs.append([observation, *(step.observation for step in steps)])
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("env_id", [pytest.param("LunarLanderContinuous-v3", marks=LANDER), "ALE/Pong-v5"])
def test_bad_action_batch_is_refused(env_id: str) -> None:
    """A batch for another number of environments is refused with both shapes in the message."""
    env = make_env(EnvSettings(env_id), 2, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=naming("action 3 2")):
        env.step(np.zeros((3, *env.spec.action_shape), env.spec.action_dtype))
