"""Decides when a run is over, and with which verdict. Pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.config.evaluation import CONFIRMATION_SEED_OFFSET
from tidemill.config.run import RunSettings
from tidemill.params.version import ParamsMetadata


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on a run.

    Attributes:
        solved: Whether the target was reached, and confirmed if that was asked for.
        reason: Reason, as a phrase.
        version: Version whose evaluation decided; None if there was none.
    """

    solved: bool
    reason: str
    version: int | None


def limit_reached(run: RunSettings, metadata: ParamsMetadata, wall_s: float) -> str:
    """Return a phrase that names the limit that is reached; empty if none is.

    Args:
        run: The limits.
        metadata: Of the newest parameters.
        wall_s: Seconds of training so far.
    """
    if run.max_learner_steps and metadata.learner_steps >= run.max_learner_steps:
        return f"run.max_learner_steps ({run.max_learner_steps:,}) reached"
    if run.max_env_steps and metadata.env_steps >= run.max_env_steps:
        return f"run.max_env_steps ({run.max_env_steps:,}) reached"
    if run.max_wall_s and wall_s >= run.max_wall_s:
        return f"run.max_wall_s ({run.max_wall_s:g}) reached"
    return ""


def reaches_target(run: RunSettings, mean: float) -> bool:
    """True if a mean return reaches the target of the run."""
    return run.target_return is not None and mean >= run.target_return


def evaluation_seeds(first: int, episodes: int) -> range:
    """Return the seeds of every evaluation: the same ones, so that versions are compared on equal terms."""
    return range(first, first + episodes)


def confirmation_seeds(first: int, episodes: int, confirmations: int, next_seed: int = 0) -> range:
    """Return seeds that no measurement has used.

    Args:
        first: First seed of the evaluations.
        episodes: Episodes of one confirmation.
        confirmations: How many confirmations the run has had before.
        next_seed: The one after the largest that they have played, as it is known: they may have had more episodes
            each, or another `first`.
    """
    start = max(first + CONFIRMATION_SEED_OFFSET + confirmations * episodes, next_seed)
    return range(start, start + episodes)
