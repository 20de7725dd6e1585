"""Whatever `render` returns becomes a picture, or is told."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.envs.pictures import as_picture
from tidemill.errors import FatalError

_COLOUR = np.full((4, 6, 3), 200, np.uint8)


@pytest.mark.parametrize(
    "rendered, value",
    [
        (_COLOUR, 200),
        ([np.zeros_like(_COLOUR), _COLOUR], 200),
        (_COLOUR.tolist(), 200),
        (np.full((4, 6, 3), 0.5), 128),
        (np.full((4, 6, 3), 127.6, np.float32), 128),
        (np.full((4, 6), 9, np.int64), 9),
        (np.full((4, 6, 1), 300, np.int32), 255),
        (np.full((4, 6, 4), 7, np.uint8), 7),
        (np.ones((4, 6), np.bool_), 255),
        (np.full((4, 6, 3), np.nan), 0),
    ],
)
def test_what_is_rendered_becomes_a_picture(rendered: object, value: int) -> None:
    """Lists give their newest picture, fractions are scaled, grey gets colours, transparency is left out."""
    picture = as_picture(rendered)
    assert picture is not None
    assert (picture.dtype.name, picture.shape) == ("uint8", (4, 6, 3))
    assert np.unique(picture).tolist() == [value]


@pytest.mark.parametrize("rendered", [None, [], ()])
def test_nothing_is_no_picture(rendered: object) -> None:
    """An environment may have nothing to show."""
    assert as_picture(rendered) is None


@pytest.mark.parametrize("rendered", ["text", 3, np.zeros((2, 3, 4, 5)), np.zeros((0, 3, 3)), {"a": 1}])
def test_what_is_no_picture_is_told(rendered: object) -> None:
    """Its form is named, and what was expected."""
    with pytest.raises(FatalError, match="height, width, 3"):
        as_picture(rendered)
