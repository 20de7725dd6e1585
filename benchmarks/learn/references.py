"""References of each result, from benchmarks/results/learning/references.yaml: every figure with its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.config.load import read_document
from tidemill.errors import ConfigError

_BUDGET = {"env_steps", "learner_steps"}


@dataclass(frozen=True)
class Reference:
    """A mean return that somebody named."""

    what: str
    """Whose figure it is, short."""
    value: float
    source: str
    """Where it stands, and under which conditions."""
    env_steps: int | None = None
    """Agent decisions it took; None if the figure is not of a run, or its steps are not stated."""
    learner_steps: int | None = None
    """Updates it took."""


@dataclass(frozen=True)
class References:
    """The references of one result."""

    threshold: Reference | None = None
    """Mean return from which the environment counts as solved."""
    published: Reference | None = None
    """Mean return that another program reports."""

    @property
    def target(self) -> float | None:
        """Mean return whose first crossing is reported."""
        return self.threshold.value if self.threshold else None

    @property
    def lines(self) -> dict[str, float]:
        """The returns to draw, by what they are."""
        return {each.what: each.value for each in (self.threshold, self.published) if each}


def references_of(name: str, target_return: float | None, file: Path) -> References:
    """References of a result. Without a threshold in the file, the run's own target is the threshold.

    Raises:
        ConfigError: the file says something else than `what`, `value` and `source`.
    """
    entry = (read_document(file) if file.exists() else {}).get(name) or {}
    if unknown := sorted(entry.keys() - {"threshold", "published"}):
        raise ConfigError(f"{file}: {name} has {unknown}, allowed: threshold, published")
    threshold = _reference(file, name, entry.get("threshold"))
    if threshold is None and target_return is not None:
        threshold = Reference("target", target_return, "run.target_return of the config")
    return References(threshold, _reference(file, name, entry.get("published")))


def _reference(file: Path, name: str, entry: object) -> Reference | None:
    if entry is None:
        return None
    if not isinstance(entry, dict) or entry.keys() - _BUDGET != {"what", "value", "source"}:
        raise ConfigError(f"{file}: {name} must have what, value and source, and may have a budget, got {entry!r}")
    budget = {key: int(entry[key]) for key in _BUDGET & entry.keys()}
    return Reference(str(entry["what"]), float(entry["value"]), str(entry["source"]), **budget)
