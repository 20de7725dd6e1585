"""Draw MinAtar's five games, played at random, into docs/images/gallery/minatar.gif.

    python -m scripts.docs.games     # needs MinAtar: pip install 'tidemill[minatar]'

Each kind of object has a colour. The games have sticky actions, as in training; a game that is over begins again.
"""

from __future__ import annotations

import colorsys
import sys
from pathlib import Path

import numpy as np
from minatar import Environment
from numpy.typing import NDArray
from PIL import Image

GIF = Path(__file__).parents[2] / "docs" / "images" / "gallery" / "minatar.gif"
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")

_SKIPPED, _FRAMES, _FRAME_MS = 20, 40, 120
_CELL, _GAP = 7, 8
"""Pixels of a field's cell, and between two games."""
_SEED = 2


def main() -> int:
    """Draw; return the exit code."""
    rng = np.random.default_rng(_SEED)
    games = [Environment(name) for name in GAMES]
    for game in games:
        game.seed(_SEED)
        game.reset()
    frames: list[Image.Image] = []
    for number in range(_SKIPPED + _FRAMES):
        for game in games:
            if game.act(int(rng.integers(game.num_actions())))[1]:
                game.reset()
        if number >= _SKIPPED:
            frames.append(Image.fromarray(_row([_picture(game.state()) for game in games])))
    palette = frames[-1].quantize(32)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    small[0].save(GIF, save_all=True, append_images=small[1:], duration=_FRAME_MS, loop=0, optimize=True)
    print(f"{GIF.name}: {GIF.stat().st_size / 1024:.0f} KiB")
    return 0


def _picture(state: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Colour a field, bool [10, 10, objects]: RGB [70, 70, 3]. A later object covers an earlier one."""
    picture = np.full((*state.shape[:2], 3), 20, np.uint8)
    for kind in range(state.shape[2]):
        colour = colorsys.hsv_to_rgb(kind / state.shape[2], 0.6, 0.95)
        picture[state[:, :, kind]] = np.asarray(colour) * 255
    return picture.repeat(_CELL, axis=0).repeat(_CELL, axis=1)


def _row(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Put pictures of one height beside each other, with gaps."""
    gap = np.full((pictures[0].shape[0], _GAP, 3), 128, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1)


if __name__ == "__main__":
    sys.exit(main())
