"""A part of bsuite's sweep by DQN and recurrent PPO, scored by bsuite's own analysis.

One setting of each experiment, for about 10,000 decisions: bsuite prescribes 10,000 episodes of most. Left out are
MNIST, whose data bsuite downloads, and the experiments whose episodes last up to 1,000 decisions (cart-pole, its
swing-up, mountain car). Both algorithms train at the same time, each with one setting for all experiments; bsuite's
random agent plays as many episodes. The CSV files go to benchmarks/results/bsuite, and one that is there is kept.

    make bsuite
    PYTHONPATH=.venv-bsuite:examples .venv/bin/python -m benchmarks.bsuite_sweep [--only catch/0] [--report]
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bsuite
import matplotlib
import numpy as np
from bsuite import sweep
from bsuite.baselines import experiment
from bsuite.baselines.random.agent import Random
from bsuite.logging import csv_load, csv_logging
from matplotlib.figure import Figure

from suites.bsuite_experiments import BsuiteEnv
from tidemill.config.load import load_run
from tidemill.config.sections import RunConfig
from tidemill.errors import FatalError
from tidemill.programs.cluster import Cluster

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "bsuite"

EPISODES: Mapping[str, int] = {
    "bandit/0": 10_000,
    "memory_len/0": 5_000,
    "catch/0": 1_000,
    "umbrella_length/4": 2_000,
    "deep_sea/0": 1_200,
    "bandit_noise/8": 10_000,
    "bandit_scale/12": 10_000,
    "discounting_chain/0": 100,
    "memory_size/0": 3_000,
    "catch_noise/8": 1_000,
    "catch_scale/12": 1_000,
    "umbrella_distract/0": 500,
    "deep_sea_stochastic/0": 1_200,
}
"""Experiment and setting to episodes, in the order in which they are run. The first setting, except where it is the
easiest one, and a noise of 1 and a scale of 30. Deep sea is solved if it is within 1,124 episodes."""

ALGORITHMS = ("dqn", "ppo_lstm")
NAMES = {"dqn": "DQN", "ppo_lstm": "PPO, LSTM", "random": "random"}
_COLOURS = {"dqn": "#1f77b4", "ppo_lstm": "#d95f02", "random": "#888888"}
_SEED = 1
_LONGEST_S = 1_800.0

_HEADER = """# bsuite

Scores of a part of bsuite's sweep (Osband et al., 2020) by bsuite's own analysis, from 0 to 1. One setting of each
experiment was run for about 10,000 decisions of one environment, once, with seed 1.
[DQN](../../../examples/suites/bsuite_dqn.yaml) has the settings of bsuite's baseline,
[PPO with an LSTM](../../../examples/suites/bsuite_ppo_lstm.yaml) has our own; each has the same for all experiments.
Every reward of training counts, so a score also measures how fast an ability is learned. bsuite prescribes about twenty
settings of each experiment and more episodes of most, so these scores do not compare with published ones.

```bash
make bsuite
PYTHONPATH=.venv-bsuite:examples .venv/bin/python -m benchmarks.bsuite_sweep
```

![Radar of the mean scores by ability of DQN, PPO with an LSTM and a random agent.](radar.svg)

| Experiment | Ability | Episodes, of prescribed | DQN | PPO, LSTM | random |
|---|---|---|---|---|---|
"""
_FOOTER = """
MNIST is left out because bsuite downloads its data. Cart-pole, its swing-up and mountain car are left out because an
episode lasts up to 1,000 decisions. The ability `generalization` is therefore not measured.
memory_len/0 still shows what is asked for in the step that asks, so it needs no memory; memory_size/0 does.
"""


def main() -> None:
    """Run what is missing, then write the table and the radar of all that every agent has run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=EPISODES, default=list(EPISODES), help="experiments to run")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    for bsuite_id in () if options.report else options.only:
        _run(bsuite_id, EPISODES[bsuite_id])
    scores = score()
    (RESULTS / "README.md").write_text(report(scores), encoding="utf-8")
    draw(scores.abilities, RESULTS / "radar.svg")


def _run(bsuite_id: str, episodes: int) -> None:
    """Train with each algorithm, and play with random actions, where there is no CSV file yet."""
    missing = [algorithm for algorithm in ALGORITHMS if not _file(algorithm, bsuite_id).exists()]
    with tempfile.TemporaryDirectory(prefix="tm-") as scratch, ExitStack() as stack:
        configs = {each: _config(each, bsuite_id, episodes, Path(scratch)) for each in missing}
        clusters = {each: stack.enter_context(Cluster(config)) for each, config in configs.items()}
        for algorithm, cluster in clusters.items():
            if cluster.wait(_LONGEST_S).exit_code:
                raise FatalError(f"{bsuite_id} with {algorithm} did not end: see {cluster.folder}")
            _keep(Path(scratch) / algorithm, algorithm, bsuite_id, episodes)
    if not _file("random", bsuite_id).exists():
        with tempfile.TemporaryDirectory(prefix="tm-") as scratch:
            env = bsuite.load_and_record(bsuite_id, scratch)
            experiment.run(Random(env.action_spec(), seed=_SEED), env, episodes)
            _keep(Path(scratch), "random", bsuite_id, episodes)


def _config(algorithm: str, bsuite_id: str, episodes: int, scratch: Path) -> RunConfig:
    kwargs = {"bsuite_id": bsuite_id, "log_to": str(scratch / algorithm)}
    config, _ = load_run(
        ROOT / "examples" / "suites" / f"bsuite_{algorithm}.yaml",
        {
            "run.root": str(scratch / "runs"),
            "run.name": algorithm,
            "run.seed": _SEED,
            "run.max_env_steps": episodes * episode_steps(bsuite_id),
            "env.kwargs": kwargs,
            "launcher.status_page": False,
        },
    )
    return config


def episode_steps(bsuite_id: str) -> int:
    """Return the decisions of an episode, which are the same in each of these experiments."""
    env = BsuiteEnv(bsuite_id)
    env.reset()
    steps, ended = 0, False
    while not ended:
        _, _, terminated, truncated, _ = env.step(np.int64(0))
        steps, ended = steps + 1, terminated or truncated
    return steps


def _file(agent: str, bsuite_id: str) -> Path:
    return RESULTS / agent / f"{csv_logging.BSUITE_PREFIX}{bsuite_id.replace('/', csv_logging.SAFE_SEPARATOR)}.csv"


def _keep(folder: Path, agent: str, bsuite_id: str, episodes: int) -> None:
    """Copy a CSV file without what an actor logged after the last counted episode.

    Raises:
        FatalError: The file ends before that episode.
    """
    to = _file(agent, bsuite_id)
    header, *rows = (folder / to.name).read_text(encoding="utf-8").splitlines()
    episode = header.split(",").index("episode")
    kept = [row for row in rows if int(row.split(",")[episode]) <= episodes]
    if int(kept[-1].split(",")[episode]) != episodes:
        raise FatalError(f"{folder / to.name} ends after {kept[-1]}, before episode {episodes}")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join([header, *kept, ""]), encoding="utf-8")
    print(f"{bsuite_id}, {agent}: {kept[-1]}", flush=True)


@dataclass(frozen=True)
class Scores:
    """What bsuite's analysis says of the experiments that every agent has run."""

    experiments: Mapping[tuple[str, str], float]
    """Agent and experiment, such as `catch`, to score."""
    types: Mapping[str, str]
    """Experiment to the ability that bsuite lists it under."""
    abilities: Mapping[str, Mapping[str, float]]
    """Agent and ability to the mean score of the experiments that bsuite tags with it."""


def score() -> Scores:
    """Score the CSV files."""
    import pandas
    from bsuite.experiments import summary_analysis  # imports plotnine for seconds

    # The analysis of deep sea calls it; pandas 2 removed it.
    pandas.Series.append = lambda series, other: pandas.concat([series, other])
    complete = [each for each in EPISODES if all(_file(agent, each).exists() for agent in NAMES)]
    with tempfile.TemporaryDirectory(prefix="tm-") as scratch:
        for agent in NAMES:
            (Path(scratch) / agent).mkdir()
            for bsuite_id in complete:
                shutil.copy(_file(agent, bsuite_id), Path(scratch) / agent)
        frame, names = csv_load.load_bsuite({agent: str(Path(scratch) / agent) for agent in NAMES})
    scored = summary_analysis.bsuite_score(frame, names)
    rows = scored.to_dict("records")
    abilities: dict[str, dict[str, float]] = {agent: {} for agent in NAMES}
    for row in summary_analysis.ave_score_by_tag(scored, names).to_dict("records"):
        if not math.isnan(row["score"]):
            abilities[row["agent_name"]][row["tag"]] = float(row["score"])
    return Scores(
        experiments={(row["agent_name"], row["bsuite_env"]): float(row["score"]) for row in rows},
        types={row["bsuite_env"]: row["type"] for row in rows},
        abilities=abilities,
    )


def report(scores: Scores) -> str:
    """Return the page of results as Markdown."""
    lines = []
    for bsuite_id, episodes in EPISODES.items():
        name = bsuite_id.partition(sweep.SEPARATOR)[0]
        if name in scores.types:
            ability = scores.types[name].replace("_", " ")
            figures = " | ".join(f"{scores.experiments[agent, name]:.2f}" for agent in NAMES)
            lines.append(f"| {bsuite_id} | {ability} | {episodes:,} of {sweep.EPISODES[bsuite_id]:,} | {figures} |\n")
    lines += ["\nMeans by ability. An experiment counts for each ability that bsuite tags it with.\n\n"]
    lines += ["| Ability | DQN | PPO, LSTM | random |\n|---|---|---|---|\n"]
    for ability in sorted(scores.abilities["random"]):
        figures = " | ".join(f"{scores.abilities[agent][ability]:.2f}" for agent in NAMES)
        lines.append(f"| {ability.replace('_', ' ')} | {figures} |\n")
    return _HEADER + "".join(lines) + _FOOTER


def draw(means: Mapping[str, Mapping[str, float]], file: Path) -> None:
    """Draw a radar of scores by ability."""
    abilities = sorted(means["random"])
    angles = [2 * math.pi * index / len(abilities) for index in range(len(abilities))]
    figure = Figure(figsize=(7, 5))
    axes: Any = figure.add_subplot(projection="polar")
    for agent, scores in means.items():
        values = [scores[ability] for ability in abilities]
        axes.plot(_closed(angles), _closed(values), color=_COLOURS[agent], label=NAMES[agent], linewidth=2)
        axes.fill(_closed(angles), _closed(values), color=_COLOURS[agent], alpha=0.12)
    axes.set_xticks(angles, [ability.replace("_", "\n") for ability in abilities])
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1])
    axes.tick_params(axis="x", pad=14)
    axes.legend(loc="upper left", bbox_to_anchor=(1.15, 1.0), frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "bsuite"}):  # the same file from the same scores
        figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")


def _closed(values: Sequence[float]) -> list[float]:
    return [*values, values[0]]


if __name__ == "__main__":
    main()
