"""benchmarks/results/learning/README.md: one row per result, from every result.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learn.atomic import write_text
from benchmarks.learn.comparison import beside, compared, of_published
from benchmarks.learn.overview import draw_overview
from benchmarks.learn.plan import RESULTS
from benchmarks.learn.ran import ended_in_training, read_json
from benchmarks.learn.seeds import describe_seeds

Document = dict[str, Any]

_HEAD = """\
# Learning results

What Tidemill learned, through the whole cluster, one command a row.

![Evaluations during training, by agent decisions, of six results; dashed lines are published returns.](overview.png)

With the same budget as another program or a published result: as many decisions, and the mean return of what training
ended with, over seeds of fresh episodes. Brackets hold the 95 % bootstrap interval over seeds. It is `above` or `below`
where intervals do not overlap.

| Task | Result | Decisions | Seeds | Tidemill | Beside it | Published | Verdict |
|---|---|---|---|---|---|---|---|
"""
_SOLVED = """
Solved: what every seed needed until fresh episodes confirmed the target; medians of the seeds.

| Task | Result | Target | Seeds | Decisions | Seconds | On |
|---|---|---|---|---|---|---|
"""
_ALL = """
## How to read it

Every row is made by one command through the whole cluster, and `make learn-table` makes this page from the
`result.json` files beside it. A folder holds the config as it was run, every evaluation (`curve.csv`, the peer's in
`peer_curve.csv`) and the picture (`curve.png`): each seed thin, their mean, and the 95 % bootstrap interval of the
mean over seeds where all of them have evaluations. [Evaluation](../../../docs/evaluation.md#learning-results) says
how a result is made.

All returns are means over seeds of fresh episodes that neither training nor the choice of a version has seen, unless
marked with †. Brackets hold the 95 % bootstrap interval over seeds: with three seeds it is narrower than their spread
warrants. Env steps are agent decisions, updates are batches learned from, a network is its hidden layers or its name.

## All results

*Budget* is what ends a run, whatever comes first: so many decisions, updates or seconds; `to R` is the first version
whose evaluation and then fresh episodes have a mean of R. *Measured* says which version the *return* is of: one that
`passed` such a test was picked by it, while training continued; the `last` one is what training ended with; the
`last evaluated` one was measured while the clock ran out. *Last* has what training ended with where that is another,
*best* the version with the best evaluation. A published figure gets a verdict only if it took as many decisions (or
updates), to 1 %; what else it was made with, network and updates among it, may differ. A return is `above` or `below`
if its whole interval is; one seed has no interval and gets no verdict. *Seeds* says whether a trial had seen them when
the settings were chosen, as far as that is known ([seeds.yaml](seeds.yaml)): a mean over seeds that were seen leans to
the better. *To target* is the median of the seeds whose target fresh episodes confirmed. Seconds count from the start
of the processes; runs that shared their machine have none. Steps, updates and seconds are medians over seeds. Sources
of thresholds and published figures are in `references.yaml`.

| Result | Environment | Algorithm | Network | Seeds | Budget | Env steps | Updates | Measured | Return | Last | Best \
| Compared with | To target | Wall s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def write_table(root: Path = RESULTS) -> str:
    """Write README.md of all results and return it."""
    documents = [read_json(file) for file in sorted(root.glob("*/result.json"))]
    by_task = sorted(documents, key=lambda document: (document["env_id"], document["name"]))
    text = _HEAD + "".join(f"{row}\n" for each in by_task for row in _same_budget(each))
    text += _SOLVED + "".join(f"{row}\n" for each in by_task for row in _solved(each))
    text += _ALL + "".join(f"{row}\n" for each in documents for row in _rows(each, root))
    commands = [f"| {_curve(each)} | `{each['command']}` |" for each in documents]
    text += "\n| Result | Command |\n|---|---|\n" + "".join(f"{command}\n" for command in commands)
    draw_overview(root)
    write_text(root / "README.md", text)
    return text


def _same_budget(document: Document) -> Iterator[str]:
    """Yield the row of a result beside whom it had the same budget as, if there is one."""
    over, peer, published = document["over_seeds"], document["peer"], document["references"]["published"]
    score, budget = over["last_version"], _number(over["env_steps"])
    beside_it = beside(document) if peer else "not run"
    against = "not" if not published or score is None else of_published(published, over, score)
    if beside_it.startswith("not ") and against.startswith("not"):
        return
    theirs, verdicts = ("–", "–"), []
    if not beside_it.startswith("not "):
        theirs = f"{peer['name']}: {_return(peer['over_seeds']['last_version'])}", theirs[1]
        verdicts.append(beside_it)
    if not against.startswith("not"):
        theirs = theirs[0], f"{published['what']}: {published['value']:g}"
        verdicts.append(against)
    yield _row(
        document["env_id"], _curve(document), budget, _seeds(document), _return(score), *theirs, "; ".join(verdicts)
    )


def _solved(document: Document) -> Iterator[str]:
    """Yield the row of a result whose every seed reached its target."""
    over, target = document["over_seeds"], document["budget"]["target_return"]
    if target is None or not document["seeds"] or over["confirmed_seeds"] != len(document["seeds"]):
        return
    machines, seconds = document["machine"], _number(over["wall_s_to_confirmed"])
    on = "; ".join(dict.fromkeys(map(_on, machines if isinstance(machines, list) else [machines])))
    steps = _number(over["env_steps_to_confirmed"])
    yield _row(document["env_id"], _curve(document), f"{target:g}", _seeds(document), steps, seconds, on)


def _on(machine: Document | None) -> str:
    """Return the cores and the GPU of a machine, as far as they are known."""
    if machine is None:
        return "–"
    gpu = machine.get("gpu", "none")
    return f"{machine['cores']} cores" + ("" if gpu.startswith("none") else f", {gpu}")


def _curve(document: Document) -> str:
    return f"[{document['name']}]({document['name']}/curve.png)"


def _rows(document: Document, root: Path) -> Iterator[str]:
    """Yield the row of a result, and that of its peer."""
    references, budget, peer = document["references"], document["budget"], document["peer"]
    said = compared(references, budget, document["over_seeds"])
    if peer:
        said.append(f"{peer['name']} beside it: {beside(document)}")
    seeds = f"{_seeds(document)} {describe_seeds(document, root)}"
    yield _row(_link(document), *_cells(document, document), seeds, _budget(budget), *_measures(document, said))
    if peer:
        budget = {"env_steps": peer["over_seeds"]["env_steps"], "target_return": None}
        said = compared(references, budget, peer["over_seeds"])
        name = f"{peer['name']} beside it"
        yield _row(name, *_cells(document, peer), _seeds(peer), _budget(budget), *_measures(peer, said))


def _cells(document: Document, measured: Document) -> tuple[str, str, str]:
    return document["env_id"], document["algorithm"], _network(measured)


def _network(measured: Document) -> str:
    return measured["network"] or "not recorded"


def _measures(measured: Document, said: list[str]) -> Iterator[str]:
    over = measured["over_seeds"]
    yield _number(over["env_steps"])
    yield _number(over["learner_steps"])
    yield _measured(measured)
    yield _return(over["deciding_version"])
    yield _last(measured)
    yield _return(over["best_version"])
    yield "; ".join(said) or "–"
    yield _to_target(over, len(measured["seeds"]))
    yield _number(over["wall_s"])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _link(document: Document) -> str:
    return f"[{document['name']}]({document['name']}/result.json)"


def _seeds(measured: Document) -> str:
    unfinished = len(measured["unfinished_seeds"])
    return f"{len(measured['seeds'])}" + (f" ({unfinished} did not finish)" if unfinished else "")


def _budget(budget: Document) -> str:
    """The conditions that end a run, whichever comes first."""
    limits = ((budget["env_steps"], ""), (budget.get("learner_steps"), " updates"), (budget.get("wall_s"), " s"))
    ends = [f"{limit:,.0f}{unit}" for limit, unit in limits if limit]
    target = budget["target_return"]
    return " or ".join([*([] if target is None else [f"to {target:g}"]), *ends]) or "none"


def _measured(measured: Document) -> str:
    """The version whose return is reported."""
    finished, confirmed = len(measured["seeds"]), measured["over_seeds"]["confirmed_seeds"]
    if not finished:
        return "–"
    if not _has_own_last(measured):
        return "last"
    return {0: "last evaluated", finished: "passed"}.get(confirmed, f"{confirmed} passed, others last evaluated")


def _has_own_last(measured: Document) -> bool:
    """True if training continued after the version that was measured."""
    return not all(ended_in_training(run["reason"]) for run in measured["runs"] if run["is_finished"])


def _last(measured: Document) -> str:
    if not measured["seeds"]:
        return "–"
    if not _has_own_last(measured):
        return "the same"
    last = measured["over_seeds"]["last_version"]
    return _return(last) if last else "not recorded"


def _return(score: Document | None) -> str:
    if score is None:
        return "–"
    interval = score["interval_95"]
    ends = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
    return f"{score['mean']:.1f}{ends}" + ("" if score["fresh_episodes"] else " †")


def _to_target(over: Document, seeds: int) -> str:
    confirmed = over["confirmed_seeds"]
    if not confirmed:
        return "–"
    seconds = over["wall_s_to_confirmed"]
    timed = "" if seconds is None else f", {_number(seconds)} s"
    return f"{confirmed} of {seeds}: {_number(over['env_steps_to_confirmed'])} steps{timed}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
