"""`tidemill evaluate RUN`: tests the parameters of a run, whether or not it is running, by its own protocol."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from tidemill.config.load import from_document, read_document
from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import ConfigError, NotFound
from tidemill.params.stored import read_params
from tidemill.params.version import BEST, LATEST, Params
from tidemill.process import run, stop_event
from tidemill.services.evaluator.ending import CONFIRMATION_SEED_OFFSET
from tidemill.services.evaluator.examiner import Examiner
from tidemill.services.evaluator.outcome import outcome_of

_FRESH_SEED_OFFSET = 10 * CONFIRMATION_SEED_OFFSET
"""Far from every seed of the run's own evaluations and confirmations, and far below the training seeds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate the parameters of a run's folder; print what came out and return the exit code."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    return run("tidemill evaluate", lambda: _evaluate(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill evaluate",
        description="Test the trained policy of a run by the run's own protocol: full episodes, raw reward, "
        "each seed counted once.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, for example runs/quickstart")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the run's settings (default: RUN/config.yaml, which a launcher writes)",
    )
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes (default: as the run's protocol says)")
    parser.add_argument(
        "--tag", metavar="TAG", help="best, latest or a version's number (default: best, or latest without it)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="first seed (default: seeds the run never used)")
    parser.add_argument("--policy", choices=("greedy", "epsilon", "sampled"), help="default: as the run evaluated")
    parser.add_argument("--epsilon", type=float, metavar="E", help="random share of --policy epsilon, 0 to 1")
    parser.add_argument("--noop-max", type=int, metavar="N", help="Atari: most frames without action at the start")
    parser.add_argument("--num-envs", type=int, metavar="N", help="episodes played side by side")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the JSON file (default: in RUN/evaluations)")
    parser.add_argument("--video", type=Path, metavar="FILE", help="also record an episode as MP4")
    return parser


def _evaluate(arguments: argparse.Namespace) -> int:
    config = _config_of(arguments)
    params = _params_of(arguments.run / "params", arguments.tag)
    first = config.evaluator.seed + _FRESH_SEED_OFFSET if arguments.seed is None else arguments.seed
    torch.set_num_threads(config.evaluator.threads)
    _print_subject(config, params, first)
    stop = stop_event()
    with closing(Examiner(config)) as examiner:
        evaluation = examiner.test(params, range(first, first + config.evaluator.episodes), stop.is_set)
        if evaluation is None:
            return 130
        outcome = outcome_of(evaluation, config, params.version)
        file = arguments.output or arguments.run / "evaluations" / outcome.file_name
        outcome.write(file)
        print(f"{outcome}\nevery episode: {file}", flush=True)
        if arguments.video:
            _film(config, examiner, params, first, arguments.video)
    return 0


def _config_of(arguments: argparse.Namespace) -> EvaluatorConfig:
    """Return the run's settings with the protocol that the command line asks for."""
    file = arguments.config or arguments.run / "config.yaml"
    if not arguments.config and not file.is_file():
        raise ConfigError(f"{arguments.run} is no run: it has no config.yaml; name the settings of one with --config")
    config = from_document(EvaluatorConfig, read_document(file))
    settings = config.evaluator
    if arguments.epsilon is not None and arguments.policy not in (None, "epsilon"):
        raise ConfigError(f"--epsilon is {arguments.epsilon}, which --policy {arguments.policy} has no use for")
    asked = {
        "episodes": arguments.episodes if arguments.episodes is not None else settings.test_episodes or None,
        "policy": arguments.policy or (None if arguments.epsilon is None else "epsilon"),
        "epsilon": arguments.epsilon,
        "noop_max": arguments.noop_max,
        "num_envs": arguments.num_envs,
    }
    changed = {name: value for name, value in asked.items() if value is not None}
    return dataclasses.replace(config, evaluator=dataclasses.replace(settings, **changed))


def _params_of(folder: Path, tag: str | None) -> Params:
    if tag is not None:
        return read_params(folder, int(tag) if tag.isdigit() else tag)
    try:
        return read_params(folder, BEST)
    except NotFound:
        return read_params(folder, LATEST)


def _print_subject(config: EvaluatorConfig, params: Params, first: int) -> None:
    metadata = params.version.metadata
    print(
        f"version {params.number}: {metadata.algorithm} on {config.env.id}, "
        f"{metadata.learner_steps:,} gradient steps, {metadata.env_steps:,} agent decisions\n"
        f"{config.evaluator.episodes} episodes, {config.evaluator.policy}, seeds from {first}",
        flush=True,
    )


def _film(config: EvaluatorConfig, examiner: Examiner, params: Params, seed: int, file: Path) -> None:
    from tidemill.services.evaluator.video import record_video

    record = partial(record_video, seed=seed, file=file, max_steps=config.evaluator.video_max_steps)
    summary = examiner.film(params, record)
    played = f"an episode of return {summary.episode_return:.2f}" if summary else "a part of an episode"
    print(f"video of {played}: {file}")


if __name__ == "__main__":
    sys.exit(main())
