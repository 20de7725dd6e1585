"""Verdicts: whether a result is above or below another of the same budget, by their intervals."""

from __future__ import annotations

from typing import Any

import yaml

from benchmarks.learn.peer import ZOO

Document = dict[str, Any]

_TOLERANCE = 0.01
"""Runs end at the first version past a limit: budgets that differ by less are the same."""
_NOT_COMPARABLE = "not comparable: budgets differ"


def is_same(steps: float | None, others: float | None) -> bool:
    """True if two counts of steps are the same budget, within a tolerance."""
    return steps is not None and others is not None and abs(steps - others) <= _TOLERANCE * others


def compared(references: Document, budget: Document, over: Document) -> list[str]:
    """Compare a result with each of its references, a line each; a threshold has no budget.

    Args:
        references: Threshold and published figure of a result.
        budget: Of the result; with a target it is one that ends at the first version that passed.
        over: What its seeds say together.
    """
    score = over["deciding_version"]
    if score is None:
        return []
    said = []
    if threshold := references["threshold"]:
        target = budget["target_return"]
        is_own_end = target is not None and target >= threshold["value"] and over["confirmed_seeds"] == score["seeds"]
        verdict = "reached when each run stopped" if is_own_end else verdict_of(score, _fixed(threshold["value"]))
        said.append(f"{threshold['what']} {threshold['value']:g}: {verdict}")
    if published := references["published"]:
        verdict = of_published(published, over, score)
        said.append(f"{published['what']} {published['value']:g}{_cost(published)}: {verdict}")
    return said


def of_published(published: Document, over: Document, score: Document) -> str:
    """Return the verdict on a score beside a published figure, if both took as much."""
    return verdict_of(score, _fixed(published["value"])) if _took_as_much(published, over) else _NOT_COMPARABLE


def verdict_of(ours: Document, theirs: Document) -> str:
    """Judge if a score is above or below another, and by how much.

    Args:
        ours: `mean` and `interval_95` of a score; the interval is None if it is of one seed.
        theirs: The same of the other.

    Returns:
        A difference is one where the intervals do not overlap; a score of one seed has none, and gets no verdict.
    """
    difference = ours["mean"] - theirs["mean"]
    if ours["interval_95"] is None or theirs["interval_95"] is None:
        return f"no verdict of one seed, {difference:+.1f}"
    (low, high), (their_low, their_high) = ours["interval_95"], theirs["interval_95"]
    if low > their_high:
        return f"above, {difference:+.1f}"
    if high < their_low:
        return f"**below, {difference:+.1f}**"
    return f"no difference shown, {difference:+.1f}"


def _fixed(value: float) -> Document:
    """Return a figure that is given without an interval as a score."""
    return {"mean": value, "interval_95": [value, value]}


def beside(document: Document) -> str:
    """Compare a result with the peer that ran beside it, by the last versions of both."""
    ours, theirs = document["over_seeds"], document["peer"]["over_seeds"]
    settings_for = zoo_steps(document)
    if not is_same(ours["env_steps"], theirs["env_steps"]):
        return _NOT_COMPARABLE
    if settings_for and not is_same(theirs["env_steps"], settings_for):
        return f"not comparable: its settings are for {settings_for:,} steps"
    if ours["last_version"] is None or theirs["last_version"] is None:
        return "not recorded"
    return verdict_of(ours["last_version"], theirs["last_version"])


def zoo_steps(document: Document) -> int:
    """Return for how many decisions the zoo's hyperparameters for a result's environment are made.

    Returns:
        0 if it is not known, or if nothing in them falls over the run: then each part of a longer run is like a short
        one, and both programs may be compared at any length.
    """
    zoo = yaml.safe_load(ZOO.read_text(encoding="utf-8"))
    settings = zoo.get(document["algorithm"], {}).get(document["env_id"], {})
    return int(settings.get("n_timesteps", 0)) if _falls(settings) else 0


def _falls(settings: Document) -> bool:
    """True if one of the zoo's settings decreases over the run: a rate `lin_X`, or DQN's epsilon."""
    return "exploration_fraction" in settings or any(str(value).startswith("lin_") for value in settings.values())


def _took_as_much(published: Document, over: Document) -> bool:
    budgets = [name for name in ("env_steps", "learner_steps") if published.get(name)]
    return bool(budgets) and all(is_same(over[name], published[name]) for name in budgets)


def _cost(published: Document) -> str:
    if steps := published.get("env_steps"):
        return f" after {steps:,}"
    if updates := published.get("learner_steps"):
        return f" after {updates:,} updates"
    return ""
