"""Atari games on the Arcade Learning Environment's own C++ vector environment.

ale-py preprocesses (frame skip, maximum of two frames, gray, 84x84, no-op starts) and resets by the next
step. This file adds what it cannot do exactly: lives that end a training episode without a reset, clipped
rewards beside raw returns, and full-game summaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemill.envs.interface import EpisodeSummary, Tick
from tidemill.envs.nearest import nearest
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from ale_py import AtariVectorEnv

FRAME_SIZE = 84
"""Height and width of an observation, in pixels."""


def make_atari(settings: EnvSettings, num_envs: int, *, training: bool, render: bool = False) -> AleVectorEnv:
    """Make a batch of Atari games; see `make_env`.

    Raises:
        ConfigError: ale-py is not installed, or it has no such game.
    """
    ale = _make_ale(settings, num_envs, training=training)
    return AleVectorEnv(
        ale,
        settings.frame_stack,
        life_loss_terminates=training and settings.episodic_life,
        clip_rewards=training and settings.clip_rewards,
    )


def _make_ale(settings: EnvSettings, num_envs: int, *, training: bool) -> AtariVectorEnv:
    try:
        from ale_py import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(
            f"env.id is {settings.id!r}, which needs ale-py: pip install 'tidemill[atari]' ({error})"
        ) from error
    limit = settings.max_episode_steps * settings.frame_skip if training else 0
    return AtariVectorEnv(
        _rom_name(settings.id),
        num_envs,
        # More threads per process gain less than more actors do, and an actor shares its core with nobody.
        num_threads=1,
        max_num_frames_per_episode=min(limit, settings.max_frames) if limit else settings.max_frames,
        repeat_action_probability=settings.sticky_actions,
        full_action_space=settings.full_action_space,
        img_height=FRAME_SIZE,
        img_width=FRAME_SIZE,
        stack_num=1,
        frameskip=settings.frame_skip,
        noop_max=settings.noop_max + 1,  # ale-py draws from 0 .. noop_max - 1
        reward_clipping=False,
        use_fire_reset=settings.fire_reset,
    )


def _rom_name(env_id: str) -> str:
    """Return ale-py's name of a game: `space_invaders` for `ALE/SpaceInvaders-v5` or `ALE/SpaceInvaders`."""
    from ale_py.roms import get_all_rom_ids

    names = {"".join(part.capitalize() for part in rom.split("_")): rom for rom in get_all_rom_ids()}
    game = env_id.removeprefix("ALE/").removesuffix("-v5")
    if game not in names:
        hint = nearest(env_id, [f"ALE/{name}-v5" for name in names])
        raise ConfigError(f"env.id is {env_id!r}, which is no known Atari game{hint}")
    return names[game]


class AleVectorEnv:
    """`VectorEnv` over one ale_py.AtariVectorEnv, which resets a game that ended by the next step."""

    def __init__(
        self, ale: AtariVectorEnv, frame_stack: int, *, life_loss_terminates: bool, clip_rewards: bool
    ) -> None:
        """Wrap a vector environment, which this object then owns.

        Args:
            ale: Made with `stack_num=1`, `reward_clipping=False`, `episodic_life=False`.
            frame_stack: Frames the network sees at once; only told in the spec.
            life_loss_terminates: Whether a lost life ends the training episode.
            clip_rewards: Whether `Tick.reward` is the sign of the raw reward.
        """
        self._ale = ale
        self._life_loss_terminates = life_loss_terminates
        self._clip_rewards = clip_rewards
        self._spec = EnvSpec(
            (FRAME_SIZE, FRAME_SIZE), "uint8", frame_stack, num_actions=len(ale.ale.get_action_set())
        )
        self._ended = np.zeros(ale.num_envs, np.bool_)
        self._lives = np.zeros(ale.num_envs, np.int32)
        self._returns = np.zeros(ale.num_envs, np.float64)
        self._lengths = np.zeros(ale.num_envs, np.int64)

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""
        return self._spec

    @property
    def num_envs(self) -> int:
        """Games in the batch."""
        return len(self._ended)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        """Start every game anew, game i with seed + i; see `VectorEnv.reset`."""
        observation, info = self._ale.reset(seed=seed)
        self._lives = info["lives"]
        for state in (self._ended, self._returns, self._lengths):
            state[:] = 0
        return _newest_frame(observation)

    def step(self, action: NDArray[Any]) -> Tick:
        """Act in every game, or reset it if it had ended; see `VectorEnv.step`."""
        self._check(action)
        was_reset = self._ended
        stacked, raw_reward, game_over, truncated, info = self._ale.step(action)
        self._ended = game_over | truncated
        life_lost = self._life_losses(info["lives"], was_reset)
        raw_reward = raw_reward * ~was_reset  # ale-py repeats the last reward when it resets
        self._returns += raw_reward
        self._lengths += ~was_reset
        return Tick(
            observation=_newest_frame(stacked),
            reward=(np.sign(raw_reward) if self._clip_rewards else raw_reward).astype(np.float32),
            terminated=game_over | life_lost,
            truncated=truncated,
            # The observation after a lost life starts the next episode, unless the game ended with it.
            is_first=was_reset | (life_lost & ~self._ended),
            was_reset=was_reset,
            episodes=self._summaries(game_over) if self._ended.any() else (),
        )

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one game; see `VectorEnv.render`."""
        return None

    def close(self) -> None:
        """Free the games; closing twice does nothing."""
        self._ale.close()

    def _check(self, action: NDArray[Any]) -> None:
        """Raise InvalidArgument for a bad batch, in which ale-py would silently play no-ops."""
        if action.shape != self._ended.shape:
            raise InvalidArgument(f"action has shape {action.shape}, allowed: {self._ended.shape}")
        if action.min() < 0 or action.max() >= self._spec.num_actions:
            raise InvalidArgument(
                f"actions are {action.tolist()}, allowed: 0 to {self._spec.num_actions - 1}"
            )

    def _life_losses(self, lives: NDArray[np.int32], was_reset: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return where a life ended and the game goes on, bool [N]."""
        # Zero lives is left to the end of the game: some games show it for a few frames before they end.
        lost: NDArray[np.bool_] = (lives < self._lives) & (lives > 0) & ~was_reset
        self._lives = lives
        return lost & self._life_loss_terminates

    def _summaries(self, game_over: NDArray[np.bool_]) -> tuple[EpisodeSummary, ...]:
        """Return a summary of each game that ended in this tick, and clear its counters."""
        ended = np.flatnonzero(self._ended)
        summaries = tuple(
            EpisodeSummary(int(i), float(self._returns[i]), int(self._lengths[i]), bool(game_over[i]))
            for i in ended
        )
        self._returns[ended] = 0
        self._lengths[ended] = 0
        return summaries


def _newest_frame(stacked: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Drop the stack axis, [N, 1, 84, 84] -> [N, 84, 84]. No copy: ale-py makes a new array each time."""
    return stacked[:, 0]
