"""Runs of a committed result whose folders are gone, so that a result can grow one seed at a time."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learn.ran import Measure, Ran, read_json
from tidemill.errors import ConfigError
from tidemill.scores import Score, score_of

_MEASURES = ("first_reached", "confirmed", "final", "best", "test_final", "test_best", "test_last")
_PROVENANCE = ("machine", "versions", "commit", "jobs")


def read_committed(folder: Path, config_text: str, seeds: Collection[int]) -> list[Ran]:
    """Return the runs of some seeds that a result holds, as they were when it was written.

    Args:
        folder: Of the result; there need be none.
        config_text: The config of the runs that shall stand beside them, as YAML.
        seeds: Which runs.

    Raises:
        ConfigError: the result is one of other settings, or has a peer, whose runs it does not hold whole.
    """
    document = read_json(folder / "result.json")
    found = [run for run in document.get("runs", ()) if run["seed"] in seeds]
    if not found:
        return []
    if document["peer"]:
        raise ConfigError(f"{folder} has a peer beside it: such a result is made whole, without --extend")
    if yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) != yaml.safe_load(config_text):
        raise ConfigError(
            f"{folder} was made with other settings: see its config.yaml; give this result another --name"
        )
    scores = _read_curve(folder / "curve.csv")
    provenance = _provenance(document)
    return [_ran(run, scores.get(run["seed"], []), provenance[run["seed"]]) for run in found]


def _ran(run: dict[str, Any], scores: list[Score], provenance: dict[str, Any]) -> Ran:
    fields = {name: value for name, value in run.items() if name != "evaluations"}
    fields |= {name: Measure(**run[name]) if run[name] else None for name in _MEASURES}
    return Ran(**fields, scores=tuple(scores), provenance=provenance)


def _read_curve(file: Path) -> dict[int, list[Score]]:
    curves: dict[int, list[Score]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            curves.setdefault(int(row.pop("seed")), []).append(score_of(row))
    return curves


def _provenance(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return by seed what the result says once where its runs agree and in a list where they do not."""
    seeds = [run["seed"] for run in document["runs"]]
    columns = {
        name: value if isinstance(value := document[name], list) else [value] * len(seeds) for name in _PROVENANCE
    }
    return {seed: {name: columns[name][index] for name in _PROVENANCE} for index, seed in enumerate(seeds)}
