"""SAC on MountainCarContinuous with 20 demonstrations in half of each batch, and without, by the same settings.

The demonstrations are those of examples/prior_data; each run has other seeds of networks, exploration and environments
than the demonstrations. A score is the mean return of the last evaluation, of 20 episodes. Only scores are compared, so
the machine need not be quiet.

    python -m benchmarks.prior_data [--seeds 11 12 13] [--episodes 20] [--dry-run]
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.rows import Row, write
from tidemill.config.load import load_run
from tidemill.programs.cluster import Cluster
from tidemill.replay import Server
from tidemill.scores import read_scores

_EXAMPLE = Path(__file__).parents[1] / "examples" / "prior_data"
_LONGEST_S = 1_800.0


def main() -> None:
    """Train all seeds with and without demonstrations; write benchmarks/results/prior_data.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12, 13], help="of the runs")
    parser.add_argument("--episodes", type=int, default=20, help="demonstrations")
    parser.add_argument("--env-steps", type=int, default=20_000, help="decisions of a run")
    parser.add_argument("--dry-run", action="store_true", help="print, and write no file")
    options = parser.parse_args()
    demonstrations = _demonstrations()
    with Server() as server, tempfile.TemporaryDirectory(prefix="tm-") as root:
        steps, shown = demonstrations.write(server.address, options.episodes)
        sources = {"demonstrations": {"fraction": 0.5, "replay": server.address}}
        rows: list[Row] = []
        for name, extra in (("half of each batch demonstrations", sources), ("no demonstrations", {})):
            curves = [_curve(Path(root), seed, options.env_steps, extra) for seed in options.seeds]
            rows.append(_row(name, options.seeds, curves))
    about: Row = {"name": "demonstrations", "episodes": options.episodes, "steps": steps, "mean": round(shown, 1)}
    rows.append(about)
    if options.dry_run:
        for each in rows:
            print(each)
        return
    write("prior_data", rows)


def _curve(root: Path, seed: int, env_steps: int, sources: dict[str, Any]) -> list[tuple[int, float]]:
    """Return the decisions and the mean return of each evaluation of a run."""
    kind = "with" if sources else "without"
    config, _ = load_run(
        _EXAMPLE / "mountain_car.yaml",
        {
            "run.root": str(root),
            "run.name": f"{kind}_{seed}",
            "run.seed": seed,
            "run.max_env_steps": env_steps,
            "learner.sources": sources,
            "evaluator.video": False,
            "launcher.status_page": False,
        },
    )
    with Cluster(config) as cluster:
        cluster.wait(_LONGEST_S)
        curve = [(score.env_steps, round(score.mean, 1)) for score in read_scores(cluster.folder / "scores.csv")]
    print(f"{kind}, seed {seed}: {curve[-1]}", flush=True)
    return curve


def _row(name: str, seeds: list[int], curves: list[list[tuple[int, float]]]) -> Row:
    return {
        "name": f"mean return after training, {name}",
        "unit": "return",
        "seeds": seeds,
        "ours": [curve[-1][1] for curve in curves],
        "curves": curves,
    }


def _demonstrations() -> ModuleType:
    """Return the example's module."""
    found = importlib.util.spec_from_file_location("demonstrations", _EXAMPLE / "demonstrations.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
