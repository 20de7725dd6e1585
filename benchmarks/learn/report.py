"""result.json of a learning result, from the folders of its runs alone."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learn import curve
from benchmarks.learn.atomic import write_json, write_text
from benchmarks.learn.plan import RESULTS, RUNS, command_of
from benchmarks.learn.ran import Measure, Ran, read_json, read_ran, seeds_of, untimed
from benchmarks.learn.references import References, references_of
from tidemill.config.load import from_document, read_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import NotFound
from tidemill.rl.settings.registry import AgentConfig
from tidemill.services.tools.plot.bootstrap import interquartile_mean, mean_interval

Document = dict[str, Any]

PEER = "Stable-Baselines3"


def write_report(
    name: str,
    seeds: Sequence[int] = (),
    committed: Sequence[Ran] = (),
    *,
    runs_root: Path = RUNS,
    results_root: Path = RESULTS,
    declared: bool = False,
    timed: bool = True,
) -> Document:
    """Write config, curves and result.json of a result; return the latter.

    Args:
        name: Of the result.
        seeds: Of its runs; none takes all there are.
        committed: Runs of other seeds that the result has already and keeps.
        runs_root: Folder of the runs of all results.
        results_root: Folder of all results.
        declared: Whether the seeds were declared before any of them was run.
        timed: Whether the machine did nothing else, so that seconds mean something; otherwise they are left out.

    Raises:
        NotFound: nothing was run.
    """
    root, results = runs_root / name, results_root / name
    wanted = sorted(seeds) or seeds_of(root, "seed")
    folders = [root / f"seed-{seed}" for seed in wanted]
    with_config = next((folder for folder in folders if (folder / "config.yaml").exists()), None)
    if with_config is None:
        raise NotFound(f"{root} has no run of the seeds {', '.join(map(str, wanted)) or '(none)'}")
    config = from_document(RunConfig, read_document(with_config / "config.yaml"))
    references = references_of(name, config.run.target_return, results_root / "references.yaml")
    new = _read(folders, wanted, references.target)
    peers = _read([root / f"sb3-seed-{seed}" for seed in wanted], wanted, references.target)
    if not timed:
        new, peers = list(map(untimed, new)), list(map(untimed, peers))
    ours = sorted([*committed, *new], key=lambda ran: ran.seed)
    document = _document(name, config, references, ours) | {"command": command_of(root), "declared_seeds": declared}
    document["peer"] = _peer(root, peers) if peers else None
    write_text(results / "config.yaml", (root / "config.yaml").read_text(encoding="utf-8"))
    curve.write_rows(ours, results / "curve.csv")
    if peers:
        curve.write_rows(peers, results / "peer_curve.csv")
    _draw(document, references, ours, peers, results / "curve.png")
    write_json(results / "result.json", document)
    return document


def _read(folders: Sequence[Path], seeds: Sequence[int], target: float | None) -> list[Ran]:
    found = (read_ran(folder, seed, target) for folder, seed in zip(folders, seeds, strict=True))
    return [ran for ran in found if ran is not None]


def _document(name: str, config: RunConfig, references: References, runs: Sequence[Ran]) -> Document:
    settings = config.evaluator
    return {
        "name": name,
        "env_id": config.env.id,
        "algorithm": config.agent.algorithm,
        "network": network_of(config.agent, "nature" if config.env.is_atari else "mlp"),
        "budget": budget_of(config.run),
        "command": "",
        "declared_seeds": False,
        "protocol": {
            "policy": settings.policy,
            "episodes": settings.episodes,
            "first_seed": settings.seed,
            "confirm_episodes": settings.confirm_episodes if config.run.target_return is not None else 0,
        },
        "target_return": config.run.target_return,
        "references": dataclasses.asdict(references),
        **summary(runs),
        "machine": _one_or_all(run.provenance.get("machine") for run in runs),
        "versions": _one_or_all(run.provenance.get("versions") for run in runs),
        "commit": _one_or_all(run.provenance.get("commit") for run in runs),
        "jobs": _one_or_all(run.provenance.get("jobs") for run in runs),
    }


def network_of(agent: AgentConfig, auto: str) -> str:
    """Return the network of an agent in words: `128, 128` is two hidden layers of 128 on numbers.

    Args:
        agent: Its settings.
        auto: The torso that `auto` stands for.
    """
    torso = str(getattr(agent, "network", "mlp"))
    torso = auto if torso == "auto" else torso
    if torso != "mlp":
        return torso
    found = (getattr(agent, name, None) for name in ("hidden_sizes", "actor_sizes", "critic_sizes"))
    layers = dict.fromkeys(", ".join(map(str, sizes)) for sizes in found if sizes)
    lstm_size = getattr(agent, "lstm_size", 0)
    return " and ".join(layers) + (f", LSTM {lstm_size}" if lstm_size else "")


def budget_of(run: RunSettings) -> Document:
    """The limits of a run, 0 for none. With a target the run ends earlier once it reaches the target."""
    return {
        "env_steps": run.max_env_steps,
        "learner_steps": run.max_learner_steps,
        "wall_s": run.max_wall_s,
        "target_return": run.target_return,
    }


def _peer(root: Path, runs: Sequence[Ran]) -> Document:
    results = [read_json(root / f"sb3-seed-{run.seed}" / "result.json") for run in runs]
    said = ("algorithm", "network", "hyperparameters", "source", "version", "threads", "evaluated_every")
    return {
        "name": PEER,
        **{key: _one_or_all(result.get(key) for result in results if result) for key in said},
        **summary(runs),
        "machine": _one_or_all(run.provenance.get("machine") for run in runs),
    }


def summary(runs: Sequence[Ran]) -> Document:
    """Figures of each run and over all finished runs; unfinished ones are listed separately."""
    finished = [run for run in runs if run.is_finished]
    confirmed = [run for run in finished if run.confirmed]
    return {
        "seeds": [run.seed for run in finished],
        "unfinished_seeds": [run.seed for run in runs if not run.is_finished],
        "over_seeds": {
            "deciding_version": _score(finished, "final"),
            "last_version": _last(finished),
            "best_version": _score(finished, "best"),
            "confirmed_seeds": len(confirmed),
            "env_steps_to_confirmed": _median(run.confirmed.env_steps for run in confirmed if run.confirmed),
            "wall_s_to_confirmed": _median(run.confirmed_s for run in confirmed if run.confirmed_s is not None),
            "env_steps": _median(run.env_steps for run in finished),
            "learner_steps": _median(run.learner_steps for run in finished),
            "wall_s": _median(run.wall_s for run in finished if run.wall_s is not None),
        },
        "runs": [_run(run) for run in runs],
    }


def _score(runs: Sequence[Ran], which: str) -> Document | None:
    """Return mean, interquartile mean and interval over seeds of `final` or `best`.

    Fresh episodes count if every seed has them, else the evaluations that picked the version count.
    """
    tests = [getattr(run, f"test_{which}") for run in runs]
    is_fresh = all(test is not None for test in tests)
    measures = tests if is_fresh else [getattr(run, which) for run in runs]
    return _over([measure for measure in measures if measure is not None], is_fresh=is_fresh)


def _last(runs: Sequence[Ran]) -> Document | None:
    """Return the same of what training ended with; None unless every seed has kept and tested it."""
    tests = [run.test_last for run in runs if run.test_last is not None]
    return _over(tests, is_fresh=True) if len(tests) == len(runs) else None


def _over(measures: Sequence[Measure], *, is_fresh: bool) -> Document | None:
    if not measures:
        return None
    means = [measure.mean for measure in measures]
    ends = mean_interval(np.array(means)) if len(means) > 1 else None
    return {
        "mean": statistics.fmean(means),
        "interquartile_mean": interquartile_mean(means),
        "interval_95": [float(end) for end in ends] if ends else None,
        "seeds": len(means),
        "episodes_per_seed": min(measure.episodes for measure in measures),
        "fresh_episodes": is_fresh,
    }


def _run(run: Ran) -> Document:
    """Return a run without its evaluations, which curve.csv has, and without what all runs share."""
    document = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    measures = {name: dataclasses.asdict(value) for name, value in document.items() if dataclasses.is_dataclass(value)}  # type: ignore[arg-type]
    document |= measures | {"evaluations": len(run.scores)}
    del document["scores"], document["provenance"]
    return document


def _draw(document: Document, references: References, ours: Sequence[Ran], peers: Sequence[Ran], file: Path) -> None:
    runs = {"Tidemill": ours} | ({PEER: peers} if peers else {})
    title = f"{document['name']}: {document['algorithm']} on {document['env_id']}"
    curve.draw(runs, file, title=title, lines=references.lines)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _one_or_all(values: Iterable[object]) -> object:
    """The value that all runs share, or else the list of values."""
    found = list(values)
    return found[0] if found and all(value == found[0] for value in found) else found or None
