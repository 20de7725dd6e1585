"""`tidemill evaluate RUN`: evaluates the policy of a run, running or not, or of a bundle, by the run's own protocol."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tidemill import formats
from tidemill.atomic_files import write_atomically
from tidemill.bundle.files import check_trusted, read_policy_params
from tidemill.bundle.hub import local_folder
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.atari_scores import human_normalised
from tidemill.errors import ConfigError
from tidemill.params.version import Params, Version
from tidemill.process import leave, run, stop_event
from tidemill.services.evaluator.episode_runner import EpisodeRunner, epsilon_of
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.evaluator.verdict import CONFIRMATION_SEED_OFFSET
from tidemill.settings.argument_parser import ArgumentParser

_FRESH_SEED_OFFSET = 10 * CONFIRMATION_SEED_OFFSET
"""Far from every seed of the run's own evaluations and confirmations, and far below the training seeds."""


@dataclass(frozen=True)
class EvalReport:
    """Report on one evaluation, as a JSON document.

    Episodes are full games, and returns are raw, whatever training episodes and rewards were.
    """

    run: str
    algorithm: str
    env_id: str
    params_version: int
    learner_steps: int
    """Updates behind the parameters."""
    env_steps: int
    """Agent decisions behind the parameters."""
    policy: str
    """`greedy`, `epsilon` or `sampled`."""
    epsilon: float
    """Share of random actions; 0 unless the policy is `epsilon`."""
    noop_max: int | None
    """Atari: most frames without action at an episode's start; None elsewhere."""
    sticky_actions: float | None
    """Atari: probability that a frame repeats the last action; None elsewhere."""
    max_steps: int
    """Agent decisions after which an episode was cut; 0 stands for the environment's own limit."""
    episodes: int
    failed_episodes: int
    """Episodes that are left out because their environment failed."""
    mean: float
    std: float
    """Standard deviation of the returns (over the sample, not corrected)."""
    min: float
    max: float
    median: float
    mean_length: float
    """Mean agent decisions of an episode."""
    human_normalised: float | None
    """Of the mean: 0 is random play, 1 a person; None for what is not among the 57 Atari games."""
    seeds: list[int]
    returns: list[float]
    lengths: list[int]
    created_at: str
    """When the test ended, ISO 8601, UTC."""

    @property
    def file_name(self) -> str:
        """Name of its file: version, policy, first seed and episodes, and for Atari the no-op starts."""
        policy = f"epsilon-{self.epsilon:g}" if self.policy == "epsilon" else self.policy
        start = "" if self.noop_max is None else f"-noops-{self.noop_max}"
        return f"version-{self.params_version}-{policy}{start}-seed-{self.seeds[0]}-episodes-{self.episodes}.json"

    def write(self, file: Path) -> None:
        """Write the document, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        document = {formats.KEY: formats.NEWEST[formats.EVALUATION], **dataclasses.asdict(self)}
        write_atomically(file, json.dumps(document, indent=2) + "\n")

    def __str__(self) -> str:
        """Return the scores in one line, and one before it if episodes failed."""
        all_episodes = self.episodes + self.failed_episodes
        left_out = f"{self.failed_episodes} of {all_episodes} episodes are left out: their environment failed\n"
        normalised = "" if self.human_normalised is None else f"  human-normalised {100 * self.human_normalised:.1f} %"
        return (
            f"{left_out if self.failed_episodes else ''}"
            f"mean {self.mean:.2f}  std {self.std:.2f}  min {self.min:.2f}  max {self.max:.2f}  "
            f"median {self.median:.2f}  mean length {self.mean_length:.1f}{normalised}"
        )


def make_report(evaluation: Evaluation, config: EvaluatorConfig, version: Version) -> EvalReport:
    """Return the report on an evaluation that ended now."""
    env, settings, returns = config.env, config.evaluator, evaluation.returns
    noop_max = env.noop_max if settings.noop_max is None else settings.noop_max
    return EvalReport(
        run=config.run.name,
        algorithm=version.metadata.algorithm,
        env_id=env.id,
        params_version=version.version,
        learner_steps=version.metadata.learner_steps,
        env_steps=version.metadata.env_steps,
        policy=settings.policy,
        epsilon=epsilon_of(config) if settings.policy == "epsilon" else 0.0,
        noop_max=noop_max if env.is_atari else None,
        sticky_actions=env.sticky_actions if env.is_atari else None,
        max_steps=env.max_evaluation_steps,
        episodes=len(returns),
        failed_episodes=evaluation.failed,
        mean=evaluation.mean,
        std=evaluation.std,
        min=float(returns.min()),
        max=float(returns.max()),
        median=evaluation.median,
        mean_length=float(evaluation.lengths.mean()),
        human_normalised=human_normalised(env.id, evaluation.mean),
        seeds=list(evaluation.seeds),
        returns=returns.tolist(),
        lengths=evaluation.lengths.tolist(),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate the parameters of a run's folder; print the result and return the exit code."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    return run("tidemill evaluate", lambda: _evaluate(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="tidemill evaluate",
        description="Evaluate the trained policy of a run by the run's own protocol: full episodes, raw reward, "
        "each seed counted once.",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="folder of the run, for example runs/quickstart, or an exported folder, or hf://OWNER/NAME on the Hub",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let an exported folder's settings import modules: only for your own folders",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the run (default: RUN/config.yaml, which `tidemill train` writes)",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="number of episodes (default: evaluator.test_episodes, or else evaluator.episodes of the run)",
    )
    parser.add_argument(
        "--tag",
        metavar="TAG",
        help="parameters: best, latest or a version's number (default: best, or latest if none is tagged best)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="first seed (default: seeds the run never used)")
    _add_protocol(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file of the JSON report (default: in RUN/evaluations)"
    )
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="also record one episode as MP4, and its pictures as PNG next to it"
    )
    return parser


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy", choices=("greedy", "epsilon", "sampled"), help="how actions are chosen (default: as in the run)"
    )
    parser.add_argument(
        "--epsilon", type=float, metavar="E", help="probability of a random action with --policy epsilon, 0 to 1"
    )
    parser.add_argument("--noop-max", type=int, metavar="N", help="Atari: most no-op frames at the start of an episode")
    parser.add_argument("--num-envs", type=int, metavar="N", help="episodes played side by side")


def _evaluate(arguments: argparse.Namespace) -> int:
    arguments.run = local_folder(arguments.run)
    config = _config_of(arguments)
    tag = arguments.tag
    params = read_policy_params(arguments.run, int(tag) if tag and tag.isdigit() else tag)
    first = config.evaluator.seed + _FRESH_SEED_OFFSET if arguments.seed is None else arguments.seed
    torch.set_num_threads(config.evaluator.threads)
    _print_subject(config, params, first)
    stop = stop_event()
    with closing(EpisodeRunner(config)) as runner:
        evaluation = runner.run(params, range(first, first + config.evaluator.episodes), stop.is_set)
        if evaluation is None:
            return 130
        report = make_report(evaluation, config, params.version)
        file = arguments.output or arguments.run / "evaluations" / report.file_name
        print(report, flush=True)
        try:
            report.write(file)
        except OSError as error:
            raise ConfigError(f"the report cannot be written to {file} ({error.strerror}); choose --output") from error
        print(f"every episode: {file}", flush=True)
        if arguments.video:
            _film(config, runner, params, first, arguments.video)
    return 0


def _config_of(arguments: argparse.Namespace) -> EvaluatorConfig:
    """Return the run's settings with the protocol that the command line asks for."""
    check_trusted(arguments.run, trusted=arguments.trust)
    file = arguments.config or arguments.run / "config.yaml"
    if not arguments.config and not file.is_file():
        raise ConfigError(
            f"{arguments.run} is not a run: it has no config.yaml; pass the settings of one with --config"
        )
    config = from_document(EvaluatorConfig, read_document(file))
    settings = config.evaluator
    if arguments.epsilon is not None and arguments.policy not in (None, "epsilon"):
        raise ConfigError(
            f"--epsilon is {arguments.epsilon}, which applies to --policy epsilon only, not to {arguments.policy}"
        )
    asked = {
        "episodes": arguments.episodes if arguments.episodes is not None else settings.test_episodes or None,
        "policy": arguments.policy or (None if arguments.epsilon is None else "epsilon"),
        "epsilon": arguments.epsilon,
        "noop_max": arguments.noop_max,
        "num_envs": arguments.num_envs,
    }
    changed = {name: value for name, value in asked.items() if value is not None}
    return dataclasses.replace(config, evaluator=dataclasses.replace(settings, **changed))


def _print_subject(config: EvaluatorConfig, params: Params, first: int) -> None:
    metadata = params.version.metadata
    print(
        f"version {params.number}: {metadata.algorithm} on {config.env.id}, "
        f"{metadata.learner_steps:,} updates, {metadata.env_steps:,} agent decisions\n"
        f"{config.evaluator.episodes} episodes, {config.evaluator.policy}, seeds from {first}",
        flush=True,
    )


def _film(config: EvaluatorConfig, runner: EpisodeRunner, params: Params, seed: int, file: Path) -> None:
    from tidemill.services.evaluator.contact_sheet import PictureSample, caption, draw_contact_sheet
    from tidemill.services.evaluator.video import record_video

    sample, steps = PictureSample(), config.evaluator.video_max_steps
    record = partial(record_video, seed=seed, file=file, max_steps=steps, on_picture=sample.add)
    summary = runner.record(params, record)
    played = f"an episode of return {summary.episode_return:.2f}" if summary else "a part of an episode"
    sheet, title = file.with_suffix(".png"), caption(config.env.id, config.agent.algorithm, params.number, summary)
    draw_contact_sheet(sample.shown(), sheet, title=title)
    print(f"video of {played}: {file}, its pictures: {sheet}")


if __name__ == "__main__":
    leave(main())
