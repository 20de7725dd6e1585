"""An episode as a small GIF, for where no MP4 is shown: TensorBoard, model cards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tidemill.atomic_files import replacing
from tidemill.services.evaluator.contact_sheet import PictureSample

PICTURES = 64
_WIDTH = 240
_PICTURE_MS = 100


class GifSample:
    """Keeps at most 128 small pictures of an episode, evenly spaced."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._sample = PictureSample(PICTURES)

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Take the picture of the next step, uint8 [H, W, 3]."""
        factor = max(picture.shape[1] // _WIDTH, 1)
        self._sample.add(np.asarray(Image.fromarray(picture).reduce(factor)))

    def write(self, file: Path) -> tuple[int, int]:
        """Write the GIF, which repeats itself; the file is replaced whole. Return its width and height in pixels."""
        first, *others = (Image.fromarray(picture) for _, picture in self._sample.shown())
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, sync=False) as temporary:
            first.save(temporary, "GIF", save_all=True, append_images=others, duration=_PICTURE_MS, loop=0)
        return first.size
