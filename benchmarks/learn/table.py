"""benchmarks/results/learning/README.md: one row a result, from every result.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learn.atomic import write_text
from benchmarks.learn.plan import RESULTS
from benchmarks.learn.ran import read_json

Document = dict[str, Any]

_HEAD = """\
# Learning results

Every row is made by one command through the whole cluster, and `make learn-table` makes this page from the
`result.json` files beside it. A folder holds the config as it was run, every evaluation (`curve.csv`, the peer's in
`peer_curve.csv`) and the picture (`curve.png`): each seed thin, their mean, and the 95 % bootstrap interval of the
mean over seeds where all of them have evaluations. [Evaluation](../../../docs/evaluation.md#learning-results) tells
how a result is made.

*Score* is the mean over seeds of the version that training ended with, *best* that of the version with the best
evaluation; both on fresh episodes that neither training nor the choice of a version has seen, unless marked with †.
Brackets hold the 95 % bootstrap interval over seeds: with three seeds it is narrower than their spread warrants. *To
target* is the median of the seeds whose target fresh episodes confirmed. Env steps are agent decisions, seconds count
from the start of the processes; both are medians over seeds. Sources of thresholds and published figures are in
`references.yaml`.

| Result | Environment | Algorithm | Seeds | Env steps | Score | Best | Compared with | To target | Wall s |
|---|---|---|---|---|---|---|---|---|---|
"""


def write_table(root: Path = RESULTS) -> str:
    """Write README.md of all results and return it."""
    documents = [read_json(file) for file in sorted(root.glob("*/result.json"))]
    rows = [row for document in documents for row in _rows(document)]
    commands = [f"| [{each['name']}]({each['name']}/curve.png) | `{each['command']}` |" for each in documents]
    text = _HEAD + "".join(f"{row}\n" for row in rows)
    text += "\n| Result | Command |\n|---|---|\n" + "".join(f"{command}\n" for command in commands)
    write_text(root / "README.md", text)
    return text


def _rows(document: Document) -> Iterator[str]:
    """Yield the row of a result, and that of its peer."""
    name = document["name"]
    yield _row(f"[{name}]({name}/result.json)", document, document)
    if peer := document.get("peer"):
        yield _row(f"{peer['name']} beside it", document, peer)


def _row(name: str, document: Document, measured: Document) -> str:
    over = measured["over_seeds"]
    cells = [
        name,
        document["env_id"],
        document["algorithm"],
        _seeds(measured),
        _number(over["env_steps"]),
        _score(over["score"]),
        _score(over["best_version"]),
        _compared(document["references"], over["score"]),
        _to_target(over, len(measured["seeds"])),
        _number(over["wall_s"]),
    ]
    return f"| {' | '.join(cells)} |"


def _seeds(measured: Document) -> str:
    unfinished = len(measured["unfinished_seeds"])
    return f"{len(measured['seeds'])}" + (f" ({unfinished} did not finish)" if unfinished else "")


def _score(score: Document | None) -> str:
    if score is None:
        return "–"
    interval = score["interval_95"]
    ends = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
    return f"{score['mean']:.1f}{ends}" + ("" if score["fresh_episodes"] else " †")


def _compared(references: Document, score: Document | None) -> str:
    """Return by how much the score is above or below each reference."""
    if score is None:
        return "–"
    found = [each for each in (references["threshold"], references["published"]) if each]
    return "; ".join(_verdict(each, score["mean"] - each["value"]) for each in found) or "–"


def _verdict(reference: Document, above: float) -> str:
    verdict = f"met, +{above:.1f}" if above >= 0 else f"**short by {-above:.1f}**"
    return f"{reference['what']} {reference['value']:g}: {verdict}"


def _to_target(over: Document, seeds: int) -> str:
    confirmed = over["confirmed_seeds"]
    if not confirmed:
        return "–"
    steps, seconds = _number(over["env_steps_to_confirmed"]), _number(over["wall_s_to_confirmed"])
    return f"{confirmed} of {seeds}: {steps} steps, {seconds} s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
