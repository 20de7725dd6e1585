"""Atari games on the Arcade Learning Environment's own C++ vector environment.

ale-py preprocesses (frame skip, maximum of two frames, gray, 84x84, no-op starts) and resets by the next
step. This file adds what it cannot do exactly: lives that end a training episode without a reset, clipped
rewards beside raw returns, full-game summaries, and pictures in colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemill.envs.actions import as_batch, as_choices
from tidemill.envs.episode_counter import EpisodeCounter
from tidemill.envs.interface import VectorStep
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.installation import how_to_install
from tidemill.settings.check import nearest
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from ale_py import AtariVectorEnv

FRAME_SIZE = 84
"""Height and width of an observation, in pixels."""

_SCREEN_HEIGHT, _SCREEN_WIDTH = 210, 160


def make_atari(settings: EnvSettings, num_envs: int, *, training: bool, render: bool = False) -> AleVectorEnv:
    """Make a batch of Atari games; see `make_env`.

    Raises:
        ConfigError: ale-py is not installed, or it has no such game.
    """
    return AleVectorEnv(
        _make_ale(settings, num_envs, training=training),
        settings.frame_stack,
        life_loss_terminates=training and settings.episodic_life,
        clip_rewards=training and settings.clip_rewards,
        camera=_make_ale(settings, num_envs, training=training, in_colour=True) if render else None,
    )


def game_ids() -> list[str]:
    """Return the ids of all Atari games, `ALE/Pong-v5` for one; none if ale-py is not installed."""
    try:
        from ale_py.roms import get_all_rom_ids
    except ImportError:
        return []
    return ["ALE/" + "".join(part.capitalize() for part in rom.split("_")) + "-v5" for rom in get_all_rom_ids()]


def _make_ale(settings: EnvSettings, num_envs: int, *, training: bool, in_colour: bool = False) -> AtariVectorEnv:
    """Make ale-py's environment, either preprocessed for a network or in full colour."""
    try:
        from ale_py import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(
            f"env.id is {settings.id!r}, which needs ale-py: {how_to_install('atari')} ({error})"
        ) from error
    limit = settings.frame_skip * settings.max_steps(training=training)
    return AtariVectorEnv(
        _rom_name(settings.id),
        num_envs,
        num_threads=settings.threads,
        max_num_frames_per_episode=min(limit, settings.max_frames) if limit else settings.max_frames,
        repeat_action_probability=settings.sticky_actions,
        full_action_space=settings.full_action_space,
        stack_num=1,
        frameskip=settings.frame_skip,
        noop_max=settings.noop_max + 1,  # ale-py draws from 0 .. noop_max - 1
        reward_clipping=False,
        use_fire_reset=settings.fire_reset,
        grayscale=not in_colour,
        img_height=_SCREEN_HEIGHT if in_colour else FRAME_SIZE,
        img_width=_SCREEN_WIDTH if in_colour else FRAME_SIZE,
    )


def _rom_name(env_id: str) -> str:
    """Return ale-py's name of a game: `space_invaders` for `ALE/SpaceInvaders-v5` or `ALE/SpaceInvaders`."""
    from ale_py.roms import get_all_rom_ids

    roms = {rom.replace("_", ""): rom for rom in get_all_rom_ids()}
    game = env_id.removeprefix("ALE/").removesuffix("-v5").lower()
    if game not in roms:
        raise ConfigError(f"env.id is {env_id!r}, which is not a known Atari game{nearest(env_id, game_ids())}")
    return roms[game]


class AleVectorEnv:
    """`VectorEnv` over one ale_py.AtariVectorEnv, which resets a game that ended by the next step."""

    def __init__(
        self,
        ale: AtariVectorEnv,
        frame_stack: int,
        *,
        life_loss_terminates: bool,
        clip_rewards: bool,
        camera: AtariVectorEnv | None = None,
    ) -> None:
        """Wrap a vector environment, which this object then owns.

        Args:
            ale: Made with `stack_num=1`, `reward_clipping=False`, `episodic_life=False`.
            frame_stack: Frames the network sees at once; only reported in the spec.
            life_loss_terminates: Whether a lost life ends the training episode.
            clip_rewards: Whether `VectorStep.reward` is the sign of the raw reward.
            camera: The same games in colour. Seeds and actions determine a game, so that a second
                emulator which gets the same of both shows the colours that ale-py's gray one discards.
        """
        self._ale = ale
        self._camera = camera
        self._life_loss_terminates = life_loss_terminates
        self._clip_rewards = clip_rewards
        num_actions = len(ale.ale.get_action_set())
        self.spec = EnvSpec((FRAME_SIZE, FRAME_SIZE), "uint8", frame_stack, num_actions)
        """Shapes and dtypes of one environment."""
        self._counter = EpisodeCounter(ale.num_envs)
        self._ended = np.zeros(ale.num_envs, np.bool_)
        self._lives = np.zeros(ale.num_envs, np.int32)
        self._pictures: NDArray[np.uint8] | None = None

    @property
    def num_envs(self) -> int:
        """Games in the batch."""
        return len(self._ended)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        """Reset every game, game i with seed + i; see `VectorEnv.reset`."""
        stacked, info = self._ale.reset(seed=seed)
        if self._camera is not None:
            self._pictures = self._camera.reset(seed=seed)[0]
        self._lives = info["lives"]
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._counter.clear()
        return _newest_frame(stacked)

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act in every game, or reset it if it had ended; see `VectorEnv.step`."""
        action = as_batch(action, self._ended.shape)
        action = as_choices(action, self.spec.num_actions - 1)  # ale-py would silently play no-ops
        is_reset_step = self._ended
        stacked, raw_reward, game_over, truncated, info = self._ale.step(action)
        if self._camera is not None:
            self._pictures = self._camera.step(action)[0]
        raw_reward = raw_reward * ~is_reset_step  # a reset has no reward
        life_lost = self._life_losses(info["lives"], is_reset_step)
        self._ended = game_over | truncated
        self._counter.add(raw_reward, is_reset_step)
        return VectorStep(
            observation=_newest_frame(stacked),
            reward=(np.sign(raw_reward) if self._clip_rewards else raw_reward).astype(np.float32),
            terminated=game_over | life_lost,
            truncated=truncated,
            # The observation after a lost life starts the next episode, unless the game ended with it.
            is_first=is_reset_step | (life_lost & ~self._ended),
            is_reset_step=is_reset_step,
            episodes=self._counter.finish(self._ended, game_over),
        )

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one game, uint8 [210, 160, 3]; see `VectorEnv.render`."""
        return None if self._pictures is None else self._pictures[env_index, 0]

    def close(self) -> None:
        """Free the games; closing twice does nothing."""
        self._ale.close()
        if self._camera is not None:
            self._camera.close()

    def _life_losses(self, lives: NDArray[np.int32], is_reset_step: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the environments that lost a life while the game continues, bool [N]."""
        # Zero lives is left to the end of the game: some games show it for a few frames before they end.
        lost: NDArray[np.bool_] = (lives < self._lives) & (lives > 0) & ~is_reset_step
        self._lives = lives
        return lost & self._life_loss_terminates


def _newest_frame(stacked: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Drop the stack axis, [N, 1, 84, 84] -> [N, 84, 84]. No copy: ale-py makes a new array each time."""
    return stacked[:, 0]
