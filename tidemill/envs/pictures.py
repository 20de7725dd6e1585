"""Conversion of the results of an environment's `render` to pictures, in the many forms that environments have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FatalError


def as_picture(rendered: Any) -> NDArray[np.uint8] | None:  # noqa: ANN401 - whatever an environment returns
    """Return a picture uint8 [H, W, 3]; None if there is none.

    Of a list of pictures it is the last one, the newest. Numbers with a fraction count from 0 to 1 unless one is
    greater. Grey becomes colour, and a fourth channel is left out.

    Raises:
        FatalError: It is not a picture.
    """
    if isinstance(rendered, (list, tuple)) and np.ndim(rendered[-1] if rendered else 0) != 2:  # else rows of one
        rendered = rendered[-1] if rendered else None
    if rendered is None:
        return None
    picture = np.asarray(rendered)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or picture.size == 0 or picture.dtype.kind not in "buif":
        raise FatalError(
            f"render() returned {picture.dtype.name} {list(picture.shape)}, expected a picture [height, width, 3]"
        )
    if picture.dtype.kind == "f":
        picture = np.nan_to_num(picture, nan=0.0)
        picture = picture * 255.0 if picture.max() <= 1.0 else picture
        picture = picture.round()
    elif picture.dtype.kind == "b":
        picture = picture * np.uint8(255)
    picture = np.clip(picture, 0, 255).astype(np.uint8)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[:, :, :3]
