"""A video of one episode: MP4, H.264, in the pixel format every policy and browser shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill.atomic_files import replacing
from tidemill.envs.checks import FAILURES
from tidemill.envs.interface import EpisodeSummary, VectorEnv
from tidemill.errors import FatalError
from tidemill.services.evaluator.protocol import EnvSlot, EvalPolicy

_log = structlog.get_logger()

FRAMES_PER_S = 30
"""Pictures per second, one picture per decision."""


def record_video(
    env: VectorEnv,
    policy: EvalPolicy,
    seed: int,
    file: Path,
    *,
    max_steps: int,
    on_picture: Callable[[NDArray[np.uint8]], None] = lambda _: None,
) -> EpisodeSummary | None:
    """Play the episode of a seed, as `EvalProtocol.play` does, and write its video; the file is replaced whole.

    Args:
        env: A batch of one, made with `render=True`; closed afterwards.
        policy: The policy.
        seed: Of the episode.
        file: Where the MP4 is written.
        max_steps: Longest video, in agent decisions.
        on_picture: Called with each picture, uint8 [H, W, 3], in order.

    Returns:
        The episode's summary; None if the video ended before it.

    Raises:
        FatalError: The environment has no pictures, or the encoder failed.
    """
    episode = _Episode(env, policy, seed, max_steps)

    def pictures() -> Iterator[NDArray[np.uint8]]:
        for picture in episode.pictures():
            on_picture(picture)
            yield picture

    shown = pictures()
    try:
        first = next(shown)  # before the folder is made: there may be none
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, sync=False) as temporary:
            _encode(first, shown, temporary)
    except OSError as error:
        raise FatalError(f"the video could not be encoded: {error}") from error
    finally:
        env.close()
    return episode.summary


class _Episode:
    """One episode as a sequence of pictures."""

    def __init__(self, env: VectorEnv, policy: EvalPolicy, seed: int, max_steps: int) -> None:
        self._env, self._policy, self._seed, self._max_steps = env, policy, seed, max_steps
        self.summary: EpisodeSummary | None = None

    def pictures(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures, uint8 [H, W, 3], that of the episode's end included."""
        slot = EnvSlot(lambda: self._env)
        policy_input, rng = slot.start(self._seed, self._policy), np.random.default_rng(self._seed)
        yield (first := _picture(self._env))
        has_told = False
        for _ in range(self._max_steps):
            policy_input, self.summary = slot.step(self._policy.choose([policy_input], [rng]))
            picture = _picture(self._env)
            if picture.shape == first.shape:
                yield picture
            elif not has_told:
                has_told = True
                _log.warning("skipping frames of another size", first=first.shape, other=picture.shape)
            if self.summary is not None:
                return


def check_pictures(env: VectorEnv, policy: EvalPolicy, seed: int) -> None:
    """Raise a `FatalError` if an environment, which is closed afterwards, starts an episode but has no pictures."""
    with closing(EnvSlot(lambda: env)) as slot:
        try:
            slot.start(seed, policy)
        except FAILURES:  # it may play other episodes
            return
        _picture(env)


def _picture(env: VectorEnv) -> NDArray[np.uint8]:
    picture = env.render()
    if picture is None:
        raise FatalError("no video: the environment cannot render pictures; it needs the render mode rgb_array")
    height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
    return np.ascontiguousarray(picture[:height, :width])  # 4:2:0 colour needs even sides


def _encode(first: NDArray[np.uint8], pictures: Iterator[NDArray[np.uint8]], file: Path) -> None:
    import imageio_ffmpeg

    writer: Any = imageio_ffmpeg.write_frames(
        str(file),
        (first.shape[1], first.shape[0]),
        fps=FRAMES_PER_S,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        quality=7,
        output_params=["-movflags", "+faststart", "-f", "mp4"],
    )
    writer.send(None)
    try:
        writer.send(first)
        for picture in pictures:
            writer.send(picture)
    finally:
        writer.close()
