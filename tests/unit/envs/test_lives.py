"""Effects of lost lives on a stream, from a script of lives instead of an emulator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from ale_py import AtariVectorEnv
from numpy.typing import NDArray

from tidemill.envs.atari_env import AleVectorEnv
from tidemill.envs.interface import VectorStep
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings

PLAYS, OVER, CUT = "plays", "over", "cut"


class ScriptedAle:
    """One game whose lives and ends follow a script; each step gives 5 points, resets included."""

    def __init__(self, script: list[tuple[int, str]]) -> None:
        """Take (lives, what happened) of the reset and of each step."""
        self.num_envs = 1
        self.ale = SimpleNamespace(get_action_set=lambda: range(2))
        self._script = iter(script)

    def reset(self, *, seed: int) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start the script."""
        frame, _, _, _, info = self.step(np.zeros(1))
        return frame, info

    def step(self, action: NDArray[Any]) -> tuple[Any, ...]:
        """Return the next line of the script."""
        lives, event = next(self._script)
        over, cut = np.array([event == OVER]), np.array([event == CUT])
        frame = np.zeros((1, 1, 84, 84), np.uint8)
        return frame, np.array([5], np.int32), over, cut, {"lives": np.array([lives], np.int32)}


def play(*script: tuple[int, str]) -> list[VectorStep]:
    """Return the steps of a script, its first line being the reset."""
    ale = cast("AtariVectorEnv", ScriptedAle(list(script)))
    env = AleVectorEnv(ale, 4, life_loss_terminates=True, clip_rewards=False)
    env.reset(0)
    return [env.step(np.zeros(1, np.int64)) for _ in script[1:]]


def terminated(steps: list[VectorStep]) -> list[bool]:
    """Return the flag of the only game, step by step."""
    return [bool(step.terminated[0]) for step in steps]


def is_first(steps: list[VectorStep]) -> list[bool]:
    """Return the flag of the only game, step by step."""
    return [bool(step.is_first[0]) for step in steps]


def test_lost_life_is_an_end_whose_next_observation_is_first() -> None:
    """From three lives to two the episode ends, and the same step's observation starts the next one."""
    steps = play((3, PLAYS), (3, PLAYS), (2, PLAYS), (2, PLAYS))
    assert terminated(steps) == [False, True, False]
    assert is_first(steps) == [False, True, False]


def test_last_life_ends_once_although_the_game_shows_no_lives_before_its_end() -> None:
    """Some games play a few frames with zero lives: only the end of the game ends the episode."""
    steps = play((1, PLAYS), (0, PLAYS), (0, PLAYS), (0, OVER), (3, PLAYS))
    assert terminated(steps) == [False, False, True, False]
    assert is_first(steps) == [False, False, False, True]
    assert [len(step.episodes) for step in steps] == [0, 0, 1, 0]


def test_bonus_life_ends_nothing() -> None:
    """Winning a life does not end an episode, and losing it again does."""
    assert terminated(play((3, PLAYS), (4, PLAYS), (4, PLAYS), (3, PLAYS))) == [False, False, True]


def test_reset_to_fewer_lives_is_no_lost_life() -> None:
    """A game cut with four lives starts again with three: that does not end the new episode."""
    steps = play((3, PLAYS), (4, CUT), (3, PLAYS), (3, PLAYS))
    assert terminated(steps) == [False, False, False]
    assert is_first(steps) == [False, True, False]


def test_points_that_come_with_a_reset_are_not_counted() -> None:
    """The reward of a reset is nobody's: neither the final observation step nor the next episode's return has it."""
    steps = play((1, PLAYS), (1, PLAYS), (0, OVER), (1, PLAYS), (1, PLAYS), (0, OVER))
    assert [float(step.reward[0]) for step in steps] == [5, 5, 0, 5, 5]
    assert [(e.episode_return, e.length) for step in steps for e in step.episodes] == [(10, 2), (10, 2)]


@pytest.mark.parametrize("lives", [1, 2])
def test_life_lost_before_a_reset_is_not_remembered_after_it(lives: int) -> None:
    """`reset` in the middle of a game takes the new game's lives as they are."""
    env = make_env(EnvSettings("ALE/Breakout-v5"), 1, training=True)
    env.reset(3)
    rng = np.random.default_rng(0)
    while lives:
        lives -= int(env.step(rng.integers(0, 4, 1)).terminated[0])
    env.reset(3)
    assert not env.step(np.zeros(1, np.int64)).terminated[0]
