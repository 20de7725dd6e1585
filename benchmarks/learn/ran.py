"""One run that was made, ours or the peer's: what its folder says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.errors import NotFound
from tidemill.params.stored import read_params
from tidemill.params.version import LAST_TRAINED
from tidemill.scores import Score, read_scores

_AT_A_STEP = ("run.max_env_steps", "run.max_learner_steps", "all its decisions were made")
"""How the reason of a run begins that ended in training: it measured the parameters that it ended with."""


@dataclass(frozen=True)
class Measure:
    """The returns of some episodes of one version."""

    mean: float
    episodes: int
    env_steps: int
    """Agent decisions behind the parameters."""
    std: float | None = None
    first_seed: int | None = None
    """Of the episodes, which have seeds from here on; None: those of the evaluations."""


@dataclass(frozen=True)
class Ran:
    """Results of one run. None stands for what there is not."""

    seed: int
    is_finished: bool
    """Whether it ended by itself; what did not is drawn, but no part of any mean."""
    reason: str
    """Why it ended."""
    scores: tuple[Score, ...]
    env_steps: int
    """Agent decisions at the last evaluation."""
    learner_steps: int
    wall_s: float | None
    """Seconds of training at the last evaluation, its own time included; None: it was not timed."""
    first_reached: Measure | None
    """First evaluation with a mean at the target, confirmed or not."""
    first_reached_s: float | None
    confirmed: Measure | None
    """Fresh episodes that bore the target out; its decisions are those of the version that reached it."""
    confirmed_s: float | None
    """Seconds of training until that version was evaluated."""
    failed_confirmations: int
    final: Measure | None
    """Last evaluation."""
    best: Measure | None
    """Best evaluation. The largest of many means is above what its version can do: see `test_best`."""
    test_final: Measure | None
    """Fresh episodes of the version that decided: of a run with a target the one that passed, of others the last."""
    test_best: Measure | None
    """Fresh episodes of the best version."""
    provenance: dict[str, Any]
    test_last: Measure | None = None
    """Fresh episodes of where training stood at the end: it continued while the deciding version was measured."""

    @property
    def curve(self) -> tuple[list[float], list[float]]:
        """Agent decisions and means of the evaluations; of two at the same decisions the later one."""
        points = {float(score.env_steps): score.mean for score in self.scores}
        return sorted(points), [points[x] for x in sorted(points)]


def read_ran(folder: Path, seed: int, target: float | None) -> Ran | None:
    """Read a run's folder; None if it holds neither scores nor a result.

    Args:
        folder: The run's folder.
        seed: Its seed.
        target: Mean return it is after.

    Raises:
        DataLoss: its scores are corrupt.
    """
    scores, result = tuple(read_scores(folder / "scores.csv")), read_json(folder / "result.json")
    if not scores and not result:
        return None
    reached = next((score for score in scores if target is not None and score.mean >= target), None)
    confirmation = _confirmation(folder, result)
    return Ran(
        seed=seed,
        is_finished=bool(result),
        reason=str(result.get("reason", "no result: it did not end by itself")),
        scores=scores,
        env_steps=scores[-1].env_steps if scores else 0,
        learner_steps=scores[-1].learner_steps if scores else 0,
        wall_s=scores[-1].wall_s if scores else 0.0,
        first_reached=_measure(reached),
        first_reached_s=reached.wall_s if reached else None,
        confirmed=confirmation,
        confirmed_s=float(result["wall_s"]) if confirmation else None,
        failed_confirmations=int(result.get("failed_confirmations", 0)),
        final=_measure(scores[-1] if scores else None),
        best=_measure(max(scores, key=lambda score: score.mean, default=None)),
        test_final=_test(folder, int(result.get("params_version", 0))),
        test_best=_test(folder, int(result.get("best_version", 0))),
        provenance=read_json(folder.with_name(f"{folder.name}.json")),
        test_last=_test(folder, _last_version(folder, result)),
    )


def untimed(ran: Ran) -> Ran:
    """Return a run without its seconds: it shared the machine with other work."""
    scores = tuple(replace(score, wall_s=math.nan) for score in ran.scores)
    return replace(ran, scores=scores, wall_s=None, first_reached_s=None, confirmed_s=None)


def versions_to_test(folder: Path) -> list[int]:
    """Return the versions of a finished run that deserve a test: the one that decided, the last, and the best."""
    result = read_json(folder / "result.json")
    found = {_last_version(folder, result), *(int(result.get(each, 0)) for each in ("params_version", "best_version"))}
    return sorted(found - {0})


def ended_in_training(reason: str) -> bool:
    """True if a run ended at a number of steps, so that the last measured version is the last trained one."""
    return reason.startswith(_AT_A_STEP)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; empty if there is no file."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def seeds_of(root: Path, prefix: str) -> Sequence[int]:
    """Return the seeds that have a folder PREFIX-SEED, sorted; runs moved aside (PREFIX-SEED-1) do not count."""
    ends = (folder.name.removeprefix(f"{prefix}-") for folder in root.glob(f"{prefix}-*") if folder.is_dir())
    return sorted(int(end) for end in ends if end.isdigit())


def _measure(score: Score | None) -> Measure | None:
    return Measure(score.mean, score.episodes, score.env_steps, score.std) if score else None


def _confirmation(folder: Path, result: dict[str, Any]) -> Measure | None:
    """Return the confirmation of a run that was solved."""
    if not result.get("solved") or result.get("confirmed_mean") is None:
        return None
    rows = read_scores(folder / "confirmations.csv")
    std = rows[-1].std if rows else None
    return Measure(result["confirmed_mean"], result["confirm_episodes"], result["env_steps"], std)


def _last_version(folder: Path, result: dict[str, Any]) -> int:
    """Return the version that training ended with; 0 if it was not kept."""
    if ended_in_training(str(result.get("reason", ""))):
        return int(result.get("params_version", 0))
    try:
        return read_params(folder / "params", LAST_TRAINED).number
    except NotFound:
        return 0


def _test(folder: Path, version: int) -> Measure | None:
    """Return the test of a version with the most episodes."""
    files = (folder / "evaluations").glob(f"learn-version-{version}-episodes-*.json")
    found = [read_json(file) for file in sorted(files)]
    if not found:
        return None
    most = max(found, key=lambda document: int(document["episodes"]))
    return Measure(most["mean"], most["episodes"], most["env_steps"], most["std"], most["seeds"][0])
