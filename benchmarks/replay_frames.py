"""Real Atari frames for the replay benchmark, recorded once with ale-py and kept in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.atomic_files import replacing

GAMES = ("pong", "breakout", "space_invaders", "seaquest", "asterix")
ENVS_PER_GAME = 4
NUM_ENVS = len(GAMES) * ENVS_PER_GAME
_CACHED_STEPS = 1024
_FRAME = (84, 84)


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of `NUM_ENVS` environments.

    Attributes:
        observation: uint8 [E, T, 84, 84].
        action: int64 [E, T].
        reward: float32 [E, T].
        terminated: bool [E, T].
        truncated: bool [E, T].
        is_first: bool [E, T].
    """

    observation: NDArray[np.uint8]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_first: NDArray[np.bool_]


def cached_steps() -> Steps:
    """Return 1,024 steps of each environment, about 20,000 frames of five games."""
    path = cached_path()
    if not path.exists():
        steps = next(play(_CACHED_STEPS))
        with replacing(path, sync=False) as temporary, temporary.open("wb") as file:
            np.savez(file, **vars(steps))
    with np.load(path) as arrays:
        return Steps(**arrays)


def cached_path() -> Path:
    """Return the file that `cached_steps` keeps."""
    return Path(tempfile.gettempdir()) / f"tidemill_benchmark_frames_{NUM_ENVS}x{_CACHED_STEPS}.npz"


def play(steps: int, seed: int = 0) -> Iterator[Steps]:
    """Yield `steps` steps of every environment at a time, played at random, without end."""
    from ale_py import AtariVectorEnv

    rng = np.random.default_rng(seed)
    envs = [
        AtariVectorEnv(game=game, num_envs=ENVS_PER_GAME, stack_num=1, img_height=84, img_width=84) for game in GAMES
    ]
    seen = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    ended = np.ones(NUM_ENVS, dtype=np.bool_)
    while True:
        record = _empty(steps)
        for t in range(steps):
            record.observation[:, t] = np.concatenate(seen).reshape(NUM_ENVS, *_FRAME)
            record.is_first[:, t] = ended
            for i, env in enumerate(envs):
                here = slice(i * ENVS_PER_GAME, (i + 1) * ENVS_PER_GAME)
                action = rng.integers(env.single_action_space.n, size=ENVS_PER_GAME)  # type: ignore[attr-defined]
                seen[i], reward, terminated, truncated, _ = env.step(action)
                record.action[here, t], record.reward[here, t] = action, np.sign(reward)
                record.terminated[here, t], record.truncated[here, t] = terminated, truncated
            ended = record.terminated[:, t] | record.truncated[:, t]
        yield record


def _empty(steps: int) -> Steps:
    shape = (NUM_ENVS, steps)
    return Steps(
        np.empty((*shape, *_FRAME), dtype=np.uint8),
        np.empty(shape, dtype=np.int64),
        np.empty(shape, dtype=np.float32),
        np.empty(shape, dtype=np.bool_),
        np.empty(shape, dtype=np.bool_),
        np.empty(shape, dtype=np.bool_),
    )
