"""How a process ends that has done its part of a run, or was interrupted."""

from __future__ import annotations

import pytest

from tidemill.config.run import RunSettings
from tidemill.programs.idle import DIVERGED, INTERRUPTED, exit_or_idle


@pytest.mark.parametrize(
    "is_over, has_diverged, code",
    [(True, False, 0), (True, True, DIVERGED), (False, False, INTERRUPTED), (False, True, INTERRUPTED)],
)
def test_job_that_was_interrupted_is_started_again_even_if_training_has_diverged(
    is_over: bool, has_diverged: bool, code: int
) -> None:
    """What it had to write about the end is not written yet."""
    settings = RunSettings(supervisor="job")
    assert exit_or_idle((), settings, is_over=is_over, has_diverged=has_diverged) == code
