"""The evaluation that every contender gets: full episodes on given seeds, all of them stepped together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
from numpy.typing import NDArray

Act = Callable[[NDArray[np.float32]], NDArray[np.generic]]
"""From observations [N, ...] to the deterministic actions for them [N, ...], as the environment takes them."""


def play(env_id: str, act: Act, seeds: Sequence[int]) -> list[float]:
    """Play an episode of each seed to its end and return the undiscounted returns, in the order of the seeds."""
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
