"""A contact sheet: pictures of one episode side by side, with its score in the caption."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tidemill.atomic_files import replacing
from tidemill.envs.interface import EpisodeSummary

PICTURES = 16
"""On a sheet; fewer of a shorter episode."""

_WIDTH_IN = 2.4  # of a picture
_COLUMNS = 4

Picture = NDArray[np.uint8]


class PictureSample:
    """Keeps pictures evenly spaced over an episode whose length nobody knows yet, in bounded memory.

    It keeps every k-th picture and, whenever it has twice as many as are shown, forgets every other one and doubles k.
    """

    def __init__(self, pictures: int = PICTURES) -> None:
        """Keep none yet; `pictures`, at least 2, is how many are shown."""
        self._most, self._every, self._seen = pictures, 1, 0
        self._kept: list[tuple[int, Picture]] = []
        self._last: tuple[int, Picture] | None = None

    def add(self, picture: Picture) -> None:
        """Take the picture of the next step, uint8 [H, W, 3]."""
        self._last = (self._seen, picture.copy())  # the environment may draw the next one into the same array
        if self._seen % self._every == 0:
            self._kept.append(self._last)
        if len(self._kept) == 2 * self._most:
            self._kept, self._every = self._kept[::2], 2 * self._every
        self._seen += 1

    def shown(self) -> list[tuple[int, Picture]]:
        """Return steps and pictures, in order: the first and the last, and those between evenly spaced."""
        if self._last is None:
            return []
        kept = self._kept if self._kept[-1][0] == self._last[0] else [*self._kept, self._last]
        wanted = np.linspace(0, self._last[0], min(self._most, len(kept)))
        nearest = [min(range(len(kept)), key=lambda i: abs(kept[i][0] - step)) for step in wanted]
        return [kept[i] for i in dict.fromkeys(nearest)]


def caption(env_id: str, algorithm: str, version: int, summary: EpisodeSummary | None) -> str:
    """Return the line above a sheet: what was played by what, and its score."""
    played = "part of an episode"
    if summary is not None:
        played = f"return {summary.episode_return:,.1f} after {summary.length:,} decisions"
    return f"{env_id}, {algorithm}, version {version}: {played}"


def draw_contact_sheet(shown: list[tuple[int, Picture]], file: Path, *, title: str) -> None:
    """Draw pictures in rows, each with its step below; the file is replaced whole.

    Args:
        shown: Steps and pictures [H, W, 3], at least one, all of one size.
        file: Where the PNG is written.
        title: Above them.
    """
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    height, width = shown[0][1].shape[:2]
    size = (columns * _WIDTH_IN, rows * (_WIDTH_IN * height / width + 0.25) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    cells = figure.subplots(rows, columns, squeeze=False)
    for axes in cells.flat:
        axes.set_axis_off()
    for axes, (step, picture) in zip(cells.flat, shown, strict=False):
        axes.imshow(picture, interpolation="antialiased")
        axes.text(0.5, -0.02, f"{step:,}", transform=axes.transAxes, ha="center", va="top", fontsize=9)
    figure.suptitle(title, fontsize=10 if columns > 2 else 8)
    file.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    with replacing(file, sync=False) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
