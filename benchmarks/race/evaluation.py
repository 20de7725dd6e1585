"""The evaluation that every contender gets: full episodes on given seeds, all of them stepped together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ale_py import AtariVectorEnv

Act = Callable[[NDArray[Any]], NDArray[np.generic]]
"""From observations [N, ...] to the deterministic actions for them [N, ...], as the environment takes them.

They are float32, or uint8 [N, 4, 84, 84] for a game, of which the last frame is the newest.
"""


def make_atari(env_id: str, num_envs: int, **options: Any) -> AtariVectorEnv:  # noqa: ANN401 - of many kinds
    """Return ale-py's own vector environment with the usual frames: every fourth, gray, 84 x 84, four of them."""
    from ale_py import AtariVectorEnv

    game = env_id.removeprefix("ALE/").removesuffix("-v5").lower()
    return AtariVectorEnv(game, num_envs, noop_max=31, **options)  # it draws from 0 to 30


def play(env_id: str, act: Act, seeds: Sequence[int]) -> list[float]:
    """Play an episode of each seed to its end and return the undiscounted returns, in the order of the seeds."""
    return _play_atari(env_id, act, seeds) if env_id.startswith("ALE/") else _play(env_id, act, seeds)


def _play(env_id: str, act: Act, seeds: Sequence[int]) -> list[float]:
    envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in seeds]
    returns = [0.0] * len(envs)
    observation = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    running = list(range(len(envs)))
    while running:
        actions = act(np.asarray([observation[index] for index in running], np.float32))
        still = []
        for index, action in zip(running, actions, strict=True):
            observation[index], reward, terminated, truncated, _ = envs[index].step(action)
            returns[index] += float(reward)
            if not (terminated or truncated):
                still.append(index)
        running = still
    for env in envs:
        env.close()
    return returns


def _play_atari(env_id: str, act: Act, seeds: Sequence[int]) -> list[float]:
    """Play all games until the last one ends; those that start again meanwhile do not count."""
    envs = make_atari(env_id, len(seeds), reward_clipping=False)
    observation, _ = envs.reset(seed=np.asarray(seeds, np.int32))
    returns, running = np.zeros(len(seeds)), np.ones(len(seeds), np.bool_)
    while running.any():
        observation, reward, terminated, truncated, _ = envs.step(act(observation))
        returns += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return [float(each) for each in returns]
