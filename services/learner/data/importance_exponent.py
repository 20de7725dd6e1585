"""The schedule of the importance weights' exponent."""

from __future__ import annotations

from tidemill.config.table import TableSettings


def importance_sampling_exponent(settings: TableSettings, learner_steps: int) -> float:
    """Return beta after some updates: linear from its first to its final value, then constant.

    A table that does not draw by priority needs no weights: 0 makes them all 1.
    """
    if settings.sampler != "prioritized":
        return 0.0
    if settings.importance_sampling_steps == 0:
        return settings.importance_sampling_exponent
    share = min(learner_steps / settings.importance_sampling_steps, 1.0)
    first, final = settings.importance_sampling_exponent, settings.importance_sampling_exponent_final
    return first + share * (final - first)
