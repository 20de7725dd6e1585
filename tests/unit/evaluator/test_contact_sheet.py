"""The contact sheet: which pictures it shows of episodes of any length, and that the file holds them."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.envs.interface import EpisodeSummary
from tidemill.services.evaluator.contact_sheet import PictureSample, caption, draw_contact_sheet


def _steps(length: int, pictures: int) -> list[int]:
    sample = PictureSample(pictures)
    for step in range(length):
        sample.add(np.full((2, 2, 3), step % 256, np.uint8))
    shown = sample.shown()
    assert all(picture[0, 0, 0] == step % 256 for step, picture in shown)
    return [step for step, _ in shown]


def test_short_episode_is_shown_whole() -> None:
    """As many pictures as there are."""
    assert _steps(0, 4) == []
    assert _steps(1, 4) == [0]
    assert _steps(4, 4) == [0, 1, 2, 3]


def test_long_episode_is_shown_evenly() -> None:
    """By hand: of 0 .. 9, four are kept every second step, 0 2 4 6 8, and the last; nearest to 0, 3, 6, 9."""
    assert _steps(10, 4) == [0, 2, 6, 9]


@given(length=st.integers(2, 3000), pictures=st.integers(2, 20))
def test_first_and_last_are_shown_and_gaps_are_alike(length: int, pictures: int) -> None:
    """At most as many as wanted, in order; no gap is more than thrice what equal ones would be."""
    steps = _steps(length, pictures)
    assert (steps[0], steps[-1]) == (0, length - 1)
    assert steps == sorted(set(steps))
    assert len(steps) <= pictures
    assert max(np.diff(steps)) <= max(3 * (length - 1) / (min(pictures, length) - 1), 1)


def test_picture_that_its_owner_writes_over_is_kept() -> None:
    """Environments may draw all pictures into one array."""
    sample, picture = PictureSample(4), np.zeros((1, 1, 3), np.uint8)
    for step in range(4):
        picture[:] = step
        sample.add(picture)
    assert [shown[0, 0, 0] for _, shown in sample.shown()] == [0, 1, 2, 3]


@given(length=st.integers(1, 3000))
def test_memory_is_bounded(length: int) -> None:
    """Fewer than twice the pictures are held at any time."""
    sample = PictureSample(5)
    for _ in range(length):
        sample.add(np.zeros((1, 1, 3), np.uint8))
        assert len(sample._kept) < 10


@pytest.mark.parametrize("count", [1, 3, 16])
def test_sheet_holds_its_pictures(count: int, tmp_path: Path) -> None:
    """Each picture's colour is in the file, as often as it should be: a quarter in each of four, and so on."""
    colours = [(250 - 15 * i, 15 * i, 120) for i in range(count)]
    shown = [(10 * i, np.full((40, 60, 3), colour, np.uint8)) for i, colour in enumerate(colours)]
    draw_contact_sheet(shown, tmp_path / "sheet.png", title="Game, dqn, version 3: return 12.0 after 150 decisions")
    image = (matplotlib.image.imread(tmp_path / "sheet.png")[..., :3] * 255).round().astype(int)
    areas = [(np.abs(image - colour).max(axis=2) <= 1).sum() for colour in colours]
    assert min(areas) > 20_000
    assert max(areas) < 1.1 * min(areas)


def test_caption_has_the_score() -> None:
    """Or says that the video ended before the episode."""
    summary = EpisodeSummary(0, episode_return=251.34, length=1312, terminated=True)
    assert caption("Lander-v3", "sac", 12, summary) == "Lander-v3, sac, version 12: return 251.3 after 1,312 decisions"
    assert caption("Lander-v3", "sac", 12, None) == "Lander-v3, sac, version 12: part of an episode"
