"""The GIF of an episode, and what TensorBoard gets of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.event_files import images
from tidemill.services.evaluator.gif import PICTURES, GifSample
from tidemill.tensorboard_writer import TensorboardWriter


@pytest.mark.parametrize("steps, pictures", [(1, 1), (5, 5), (1000, PICTURES)])
def test_gif_moves_through_an_episode_of_any_length(steps: int, pictures: int, tmp_path: Path) -> None:
    """Small, from the first picture to the last, and endlessly."""
    sample = GifSample()
    for step in range(steps):
        sample.add(np.full((400, 600, 3), step * 255 // steps, np.uint8))
    assert sample.write(tmp_path / "videos" / "best.gif") == (300, 200)
    with Image.open(tmp_path / "videos" / "best.gif") as gif:
        assert (getattr(gif, "n_frames", 1), gif.size) == (pictures, (300, 200))
        assert gif.convert("RGB").getpixel((9, 9)) == (0, 0, 0)
        gif.seek(pictures - 1)
        assert gif.convert("RGB").getpixel((9, 9))[0] >= 255 * (steps - 1) // steps - 4  # type: ignore[index]


def test_tensorboard_has_the_gif_as_it_is(tmp_path: Path) -> None:
    """With its size, at the step that it is of."""
    sample = GifSample()
    sample.add(np.zeros((40, 60, 3), np.uint8))
    size = sample.write(tmp_path / "a.gif")
    writer = TensorboardWriter(tmp_path / "events")
    writer.write_picture("evaluation/best_policy", tmp_path / "a.gif", size, 70)
    assert images(tmp_path / "events") == [("evaluation/best_policy", 70, 60, 40, (tmp_path / "a.gif").read_bytes())]
