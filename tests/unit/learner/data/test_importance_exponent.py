"""The schedule of the importance weights' exponent."""

from __future__ import annotations

import pytest

from tidemill.config.table import TableSettings
from tidemill.services.learner.data.dataset import importance_sampling_exponent


@pytest.mark.parametrize("steps, expected", [(0, 0.4), (250, 0.55), (500, 0.7), (1_000, 1.0), (5_000, 1.0)])
def test_exponent_rises_linearly_and_stays_at_its_final_value(steps: int, expected: float) -> None:
    """From 0.4 to 1 over 1,000 steps: 0.6 / 1,000 a step."""
    settings = TableSettings(sampler="prioritized", importance_sampling_steps=1_000)
    assert importance_sampling_exponent(settings, steps) == pytest.approx(expected)


def test_exponent_without_schedule_is_constant() -> None:
    """`importance_sampling_steps` 0 keeps the first value."""
    settings = TableSettings(sampler="prioritized", importance_sampling_steps=0)
    assert importance_sampling_exponent(settings, 10**9) == 0.4


@pytest.mark.parametrize("sampler", ["uniform", "fifo"])
def test_other_samplers_are_not_corrected_for(sampler: str) -> None:
    """Their items all have weight 1."""
    assert importance_sampling_exponent(TableSettings(sampler=sampler), 10) == 0.0  # type: ignore[arg-type]
