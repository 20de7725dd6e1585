"""TensorBoard in a real browser: what it shows of a run's curves, settings and film."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import running_browser
from tests.support.waiting import wait_until
from tidemill.services.evaluator.gif import GifSample
from tidemill.tensorboard_writer import TensorboardWriter

pytestmark = pytest.mark.process


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """TensorBoard on the folder of two runs."""
    for name, gamma in (("first", 0.9), ("second", 0.99)):
        film = GifSample()
        film.add(np.zeros((40, 60, 3), np.uint8))
        writer = TensorboardWriter(tmp_path / "runs" / name / "tensorboard" / "evaluator")
        writer.write_hparams({"agent": {"gamma": gamma}}, name)
        writer.write({"evaluation/return_mean": 100 * gamma}, 70)
        writer.write_picture("evaluation/best_policy", tmp_path / "a.gif", film.write(tmp_path / "a.gif"), 70)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "runs"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as tensorboard:
        try:
            assert tensorboard.stderr is not None
            yield next(found[0] for line in tensorboard.stderr if (found := re.search(r"http://\S+", line)))
        finally:
            tensorboard.terminate()


def test_film_and_settings_are_on_pages_that_a_person_finds(url: str) -> None:
    """The film under Images, with its run; the table of HParams names each run beside its settings and scores."""
    with running_browser() as browser:
        browser.show_as(1400, 1000, dark=False)

        def shows(*words: str) -> bool:
            text = " ".join(name for names in browser.names().values() for name in names)
            return all(word in text for word in words)

        for page, words in (
            ("images", ("evaluation/best_policy", "first/tensorboard/evaluator")),
            ("hparams", ("agent.gamma", "evaluation/return_mean", "first, 20", "second, 20")),
        ):
            browser.open(f"{url}#{page}")
            wait_until(lambda words=words: shows(*words), f"{words} on {page}", 120.0)  # type: ignore[misc]
