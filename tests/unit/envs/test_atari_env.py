"""Atari games, against ale-py's vector environment and emulator."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from ale_py import AtariVectorEnv

from tests.support.naming import naming
from tidemill.envs.interface import EpisodeSummary, VectorStep
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.installation import how_to_install
from tidemill.types import EnvSpec

BREAKOUT = EnvSettings("ALE/Breakout-v5")


def actions(num_steps: int, num_envs: int, num_actions: int = 4) -> np.ndarray:
    """Return random actions, [T, N]."""
    return np.random.default_rng(2).integers(0, num_actions, (num_steps, num_envs))


def play(settings: EnvSettings, batch: np.ndarray, *, training: bool, seed: int = 3) -> list[VectorStep]:
    """Return the steps of the given actions."""
    env = make_env(settings, batch.shape[1], training=training)
    env.reset(seed)
    return [env.step(action) for action in batch]


def test_spec_tells_one_frame_and_the_games_own_actions() -> None:
    """Observations are single frames; the stack is only announced. Breakout has 4 actions, all games 18."""
    assert make_env(BREAKOUT, 1, training=True).spec == EnvSpec((84, 84), "uint8", 4, 4)
    full = EnvSettings("ALE/Breakout", full_action_space=True, frame_stack=2)
    assert make_env(full, 1, training=True).spec == EnvSpec((84, 84), "uint8", 2, 18)


def test_more_threads_play_the_same_games() -> None:
    """`env.threads` changes only how long a step takes."""
    batch = actions(40, 3)
    one, two = (play(replace(BREAKOUT, threads=count), batch, training=True) for count in (1, 2))
    for expected, found in zip(one, two, strict=True):
        assert np.array_equal(found.observation, expected.observation)
        assert np.array_equal(found.reward, expected.reward)


def test_returns_and_frames_equal_ale_py_alone() -> None:
    """Full-game returns, lengths and frames are those of ale-py without clipping, lives or stacks."""
    batch = actions(420, 2)
    ours = play(BREAKOUT, batch, training=True)
    ale = AtariVectorEnv("breakout", 2, num_threads=1, stack_num=4, reward_clipping=False, noop_max=31)
    ale.reset(seed=3)
    total, length, expected = np.zeros(2), np.zeros(2, int), []
    resets = np.zeros(2, bool)
    for step, action in zip(ours, batch, strict=True):
        stack, reward, terminated, truncated, _ = ale.step(action)
        assert np.array_equal(step.observation, stack[:, -1])
        total += np.where(resets, 0, reward)
        length += ~resets
        resets = terminated | truncated
        for index in np.flatnonzero(resets):
            expected.append(EpisodeSummary(int(index), float(total[index]), int(length[index]), terminated=True))
            total[index], length[index] = 0, 0
    assert [episode for step in ours for episode in step.episodes] == expected
    assert len(expected) >= 3
    assert any(episode.episode_return > 0 for episode in expected)


def test_lost_life_terminates_and_the_next_observation_is_first_without_a_reset() -> None:
    """A game of Breakout has five lives: four such ends, then the end of the game, which resets."""
    steps = play(BREAKOUT, actions(420, 1), training=True)
    ends = [step for step in steps if step.terminated[0]]
    assert [bool(step.is_first[0]) for step in ends[:5]] == [True, True, True, True, False]
    assert [len(step.episodes) for step in ends[:5]] == [0, 0, 0, 0, 1]
    assert not any(step.is_reset_step[0] for step in ends)


@pytest.mark.parametrize("training, episodic_life", [(False, True), (True, False)])
def test_lost_life_ends_nothing_in_evaluation_or_if_not_asked_for(*, training: bool, episodic_life: bool) -> None:
    """Then only the end of a game is terminated."""
    settings = EnvSettings("ALE/Breakout-v5", episodic_life=episodic_life)
    steps = play(settings, actions(420, 1), training=training)
    assert [len(step.episodes) for step in steps if step.terminated[0]] == [1] * sum(len(t.episodes) for t in steps)
    assert sum(len(step.episodes) for step in steps) >= 2


def test_same_frames_in_training_and_evaluation() -> None:
    """Training changes what the learner sees, not the game: frames and summaries agree."""
    batch = actions(200, 1)
    for one, two in zip(play(BREAKOUT, batch, training=True), play(BREAKOUT, batch, training=False), strict=True):
        assert np.array_equal(one.observation, two.observation)
        assert one.episodes == two.episodes


def test_rewards_are_clipped_by_sign_in_training_only() -> None:
    """Ms. Pac-Man's dots give 10 points: 1 in training, 10 otherwise; the return is always raw."""
    batch = actions(120, 1, 9)
    clipped = play(EnvSettings("ALE/MsPacman-v5", max_frames=400), batch, training=True)
    raw = play(EnvSettings("ALE/MsPacman-v5", max_frames=400), batch, training=False)
    unclipped = play(EnvSettings("ALE/MsPacman-v5", max_frames=400, clip_rewards=False), batch, training=True)
    points = np.array([step.reward[0] for step in raw])
    assert points.max() >= 10
    assert [step.reward[0] for step in clipped] == np.sign(points).tolist()
    assert [step.reward[0] for step in unclipped] == points.tolist()
    (summary,) = [episode for step in clipped for episode in step.episodes]
    assert summary.episode_return == points[: summary.length].sum()


def test_negative_reward_is_clipped_to_minus_one() -> None:
    """Skiing punishes every step by the time it took: the sign keeps that it is a loss."""
    step = play(EnvSettings("ALE/Skiing-v5"), actions(1, 1, 3), training=True)[0]
    raw = play(EnvSettings("ALE/Skiing-v5"), actions(1, 1, 3), training=False)[0]
    assert raw.reward[0] < -1
    assert step.reward[0] == -1


@pytest.mark.parametrize("frame_skip, decisions", [(4, 25), (3, 34), (1, 100)])
def test_max_frames_counts_emulator_frames(frame_skip: int, decisions: int) -> None:
    """100 frames are 25 decisions of 4 frames, or 34 of 3: the last one passes the limit."""
    settings = EnvSettings("ALE/Pong-v5", frame_skip=frame_skip, max_frames=100)
    steps = play(settings, actions(decisions + 1, 1), training=False)
    assert [bool(step.truncated[0]) for step in steps] == [False] * (decisions - 1) + [True, False]
    assert steps[decisions - 1].episodes == (EpisodeSummary(0, return_of(steps), decisions, terminated=False),)
    assert steps[decisions].is_reset_step[0]


def return_of(steps: list[VectorStep]) -> float:
    """Return the sum of the rewards of one environment."""
    return float(sum(step.reward[0] for step in steps))


@pytest.mark.parametrize("training, decisions", [(True, 12), (False, 25)])
def test_max_episode_steps_counts_decisions_in_training_only(*, training: bool, decisions: int) -> None:
    """12 decisions in training; evaluation keeps the limit of 100 frames."""
    settings = EnvSettings("ALE/Pong-v5", max_episode_steps=12, max_frames=100)
    steps = play(settings, actions(25, 1), training=training)
    assert [bool(step.truncated[0]) for step in steps].index(True) == decisions - 1


def test_max_evaluation_steps_counts_decisions_in_evaluation_only() -> None:
    """12 decisions of 4 frames in evaluation; training keeps the limit of 100 frames."""
    settings = EnvSettings("ALE/Pong-v5", max_evaluation_steps=12, max_frames=100)
    for training, decisions in ((False, 12), (True, 25)):
        steps = play(settings, actions(25, 1), training=training)
        assert [bool(step.truncated[0]) for step in steps].index(True) == decisions - 1


def test_lost_life_at_the_limit_is_both_terminated_and_truncated() -> None:
    """A life that ends in the step that cuts the game ends the value, and a final observation step still follows."""
    batch = actions(200, 1)
    steps = play(BREAKOUT, batch, training=True)
    decisions = next(t for t, step in enumerate(steps, start=1) if step.terminated[0])
    cut = play(EnvSettings("ALE/Breakout-v5", max_frames=4 * decisions), batch[: decisions + 1], training=True)
    last, after = cut[-2:]
    assert last.terminated[0]
    assert last.truncated[0]
    assert not last.is_first[0]
    assert after.is_reset_step[0]
    assert after.is_first[0]


def test_noop_starts_differ_between_games_and_between_episodes() -> None:
    """Random no-ops give different first frames in each game of the batch; without them all are alike."""
    game = EnvSettings("ALE/MsPacman-v5")
    varied = make_env(game, 5, training=False).reset(0)
    alike = make_env(EnvSettings("ALE/MsPacman-v5", noop_max=0), 3, training=False).reset(0)
    assert len({frame.tobytes() for frame in varied}) >= 3
    assert len({frame.tobytes() for frame in alike}) == 1


@pytest.mark.parametrize("noop_max", [0, 2])
def test_noops_last_at_most_noop_max_frames(noop_max: int) -> None:
    """ale-py's own limit is exclusive; ours is reached by some of 20 starts, and never passed."""
    from tidemill.envs.atari_env import make_atari

    ale = make_atari(EnvSettings("ALE/MsPacman-v5", noop_max=noop_max), 1, training=True)._ale
    ale.reset(seed=1)  # which loads the game again, as no later reset does
    starts = [int(ale.reset()[1]["episode_frame_number"][0]) for _ in range(20)]
    assert (min(starts), max(starts)) == (0, noop_max)


def test_fire_starts_a_game_that_waits_for_it() -> None:
    """In Breakout the ball is in play after the reset, unless `fire_reset` is off."""
    noop = np.zeros((30, 1), np.int64)
    with_fire = play(BREAKOUT, noop, training=False)
    without = play(EnvSettings("ALE/Breakout-v5", fire_reset=False), noop, training=False)
    assert len({step.observation.tobytes() for step in with_fire[5:]}) > 5
    assert len({step.observation.tobytes() for step in without[5:]}) <= 2


def test_sticky_actions_change_the_game() -> None:
    """With sticky actions the same actions lead elsewhere, and still the same seed repeats itself."""
    batch = actions(60, 1, 6)
    sticky = EnvSettings("ALE/Pong-v5", sticky_actions=0.25)
    frames = [
        b"".join(step.observation.tobytes() for step in play(settings, batch, training=True))
        for settings in (EnvSettings("ALE/Pong-v5"), sticky, sticky)
    ]
    assert frames[0] != frames[1]
    assert frames[1] == frames[2]


def test_action_outside_the_games_own_is_refused() -> None:
    """ale-py would play a no-op for it."""
    env = make_env(BREAKOUT, 2, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=naming("[0, 4] 0 3")):
        env.step(np.array([0, 4]))


def test_render_shows_the_same_game_in_colour() -> None:
    """The picture is the emulator's screen; its dark and bright pixels are where the agent sees them."""
    env = make_env(BREAKOUT, 2, training=False, render=True)
    env.reset(3)
    assert env.render() is not None
    for action in actions(200, 2):
        step = env.step(action)
    picture = env.render(1)
    assert picture is not None
    assert picture.shape == (210, 160, 3)
    assert picture.dtype == np.uint8
    assert np.ptp(picture.astype(int), axis=2).max() > 50
    bright = picture.max(axis=2)[::5, ::4] > 60  # 42 x 40 of the screen's pixels
    seen = step.observation[1][::2, ::2][:, :40] > 30
    assert bright.mean() == pytest.approx(seen.mean(), abs=0.1)
    env.close()
    assert make_env(BREAKOUT, 1, training=False).render() is None


def test_missing_ale_py_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional package the message says how to get it."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=naming("env.id 'ALE/Pong-v5' ale-py", how_to_install("atari"))):
        make_env(EnvSettings("ALE/Pong-v5"), 1, training=True)
