"""SAC on MountainCarContinuous with 20 demonstrations in half of each batch, and without, by the same settings.

The demonstrations are those of examples/prior_data; each run has other seeds of networks, exploration and environments
than the demonstrations, and both runs of a seed train at the same time. A score is the mean return of the last
evaluation, of 20 episodes. Only scores are compared, so the machine need not be quiet.

    python -m benchmarks.prior_data [--seeds 11 12 13] [--episodes 20] [--dry-run]
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.rows import Row, write
from tidemill.config.load import load_run
from tidemill.config.sections import RunConfig
from tidemill.programs.cluster import Cluster
from tidemill.replay import Server
from tidemill.scores import read_scores

_EXAMPLE = Path(__file__).parents[1] / "examples" / "prior_data"
_LONGEST_S = 1_800.0

Curve = list[tuple[int, float]]


def main() -> None:
    """Train all seeds with and without demonstrations; write benchmarks/results/prior_data.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12, 13], help="of the runs")
    parser.add_argument("--episodes", type=int, default=20, help="demonstrations")
    parser.add_argument("--env-steps", type=int, default=20_000, help="decisions of a run")
    parser.add_argument("--dry-run", action="store_true", help="print, and write no file")
    options = parser.parse_args()
    example = demonstrations()
    with Server() as server, tempfile.TemporaryDirectory(prefix="tm-") as root:
        steps, shown = example.write(server.address, options.episodes)
        sources = {"demonstrations": {"fraction": 0.5, "replay": server.address}}
        kinds: dict[str, dict[str, Any]] = {
            "half of each batch demonstrations": sources,
            "no demonstrations": {},
        }
        curves: dict[str, list[Curve]] = {kind: [] for kind in kinds}
        for seed in options.seeds:
            with ExitStack() as stack:
                clusters = [
                    stack.enter_context(Cluster(_config(root, seed, options.env_steps, extra)))
                    for extra in kinds.values()
                ]
                for kind, cluster in zip(kinds, clusters, strict=True):
                    cluster.wait(_LONGEST_S)
                    curves[kind].append(_curve(cluster.folder))
                    print(f"seed {seed}, {kind}: {curves[kind][-1][-1]}", flush=True)
    rows = [_row(kind, options.seeds, curves[kind]) for kind in kinds]
    rows.append(
        {"name": "demonstrations", "episodes": options.episodes, "steps": steps, "mean": round(float(shown), 1)}
    )
    if options.dry_run:
        for each in rows:
            print(each)
        return
    write("prior_data", rows)


def _config(root: str, seed: int, env_steps: int, sources: dict[str, Any]) -> RunConfig:
    config, _ = load_run(
        _EXAMPLE / "mountain_car.yaml",
        {
            "run.root": root,
            "run.name": f"{'with' if sources else 'without'}_{seed}",
            "run.seed": seed,
            "run.max_env_steps": env_steps,
            "learner.sources": sources,
            "evaluator.video": False,
            "launcher.status_page": False,
        },
    )
    return config


def _curve(folder: Path) -> Curve:
    """Return the decisions and the mean return of each evaluation of a run."""
    return [(score.env_steps, round(score.mean, 1)) for score in read_scores(folder / "scores.csv")]


def _row(name: str, seeds: list[int], curves: list[Curve]) -> Row:
    return {
        "name": f"mean return after training, {name}",
        "unit": "return",
        "seeds": seeds,
        "ours": [curve[-1][1] for curve in curves],
        "curves": curves,
    }


def demonstrations() -> ModuleType:
    """Return the example's module."""
    found = importlib.util.spec_from_file_location("demonstrations", _EXAMPLE / "demonstrations.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
