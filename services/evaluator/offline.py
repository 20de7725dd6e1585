"""`tidemill evaluate RUN`: evaluates the policy of a run, running or not, or of a bundle, by the run's own protocol."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from tidemill.bundle.files import check_trusted, describe_no_run, present_name, read_policy_params
from tidemill.bundle.hub import local_folder
from tidemill.config.evaluation import TEST_SEED_OFFSET
from tidemill.config.load import read_settings
from tidemill.config.noops import check_noops
from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import ConfigError
from tidemill.params.version import Params
from tidemill.process import leave, run, stop_event
from tidemill.settings.argument_parser import ArgumentParser
from tidemill.settings.check import check

if TYPE_CHECKING:
    from tidemill.services.evaluator.episode_runner import EpisodeRunner

_REPORTS = "evaluations"
"""Folder of the reports in the run's folder."""


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
    parser.add_argument("--noop-max", type=int, metavar="N", help="Atari: maximum no-op frames at an episode's start")
    parser.add_argument("--num-envs", type=int, metavar="N", help="episodes played in parallel")


def _evaluate(arguments: argparse.Namespace) -> int:
    arguments.run = local_folder(arguments.run)
    config = _config_of(arguments)
    tag = arguments.tag
    params = read_policy_params(arguments.run, int(tag) if tag and tag.isdigit() else tag)
    if arguments.video:
        _check_video(arguments.video)
    _check_report(arguments.output, arguments.run)

    import torch  # seconds, which a wrong command line need not wait for

    from tidemill.services.evaluator.episode_runner import EpisodeRunner
    from tidemill.services.evaluator.eval_report import make_report
    from tidemill.services.evaluator.protocol import EpisodesFailed
    from tidemill.services.evaluator.video import check_pictures

    first = config.evaluator.seed + TEST_SEED_OFFSET if arguments.seed is None else arguments.seed
    torch.set_num_threads(config.evaluator.threads)
    stop = stop_event()
    with closing(EpisodeRunner(config)) as runner:
        if arguments.video:
            runner.record(params, partial(check_pictures, seed=first))
        _print_subject(config, params, first)
        evaluation = runner.run(params, range(first, first + config.evaluator.episodes), stop.is_set)
        if evaluation is None:
            return 130
        if evaluation.refusal:
            raise EpisodesFailed(f"no score: {evaluation.refusal}")
        report = make_report(evaluation, config, params.version, first)
        file = arguments.output or arguments.run / _REPORTS / report.file_name
        print(report, flush=True)
        try:
            report.write(file)
        except OSError as error:
            raise _no_report(file, error.strerror) from error
        print(f"every episode: {file}", flush=True)
        if arguments.video:
            _film(config, runner, params, first, arguments.video)
    return 0


def _config_of(arguments: argparse.Namespace) -> EvaluatorConfig:
    """Return the run's settings with the protocol that the command line asks for."""
    check_trusted(arguments.run, trusted=arguments.trust, by="--trust")
    file = arguments.config or arguments.run / "config.yaml"
    if not arguments.config and not file.is_file():
        raise ConfigError(f"{describe_no_run(arguments.run)}; or pass the settings of this one with --config")
    config = read_settings(EvaluatorConfig, file)
    run = dataclasses.replace(config.run, name=present_name(arguments.run, config.run.name))
    settings = config.evaluator
    check(arguments.seed is None or arguments.seed >= 0, "--seed", arguments.seed, "0 or more")
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
    try:
        config = dataclasses.replace(config, run=run, evaluator=dataclasses.replace(settings, **changed))
        check_noops(config)
    except ConfigError as error:  # of an option: the run was given the others
        setting, _, rest = str(error).partition(" ")
        option = setting.replace("evaluator.", "--").replace("_", "-")
        raise ConfigError(f"{option} {rest}") from error
    return config


def _print_subject(config: EvaluatorConfig, params: Params, first: int) -> None:
    metadata = params.version.metadata
    # Of a bundle, both are whatever its author wrote.
    algorithm, env_id = (repr(name)[1:-1] for name in (metadata.algorithm, config.env.id))
    print(
        f"version {params.number}: {algorithm} on {env_id}, "
        f"{metadata.learner_steps:,} updates, {metadata.env_steps:,} agent decisions\n"
        f"{config.evaluator.episodes} episodes, {config.evaluator.policy}, seeds from {first}",
        flush=True,
    )


def _check_video(file: Path) -> None:
    """Raise a `ConfigError` before any episode is played if a video cannot be written, or is not named as one."""
    try:
        for written in (file, file.with_suffix(".png")):
            if written.is_dir():
                raise ConfigError(f"--video cannot be written to {file} ({written} is a folder); choose another file")
        if file.suffix.lower() != ".mp4":
            raise ConfigError(
                f"--video is {file}, allowed: a name that ends in .mp4; the pictures are in the PNG next to it"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        _try_writing(file.parent)
    except OSError as error:
        raise ConfigError(f"--video cannot be written to {file} ({error.strerror}); choose another file") from error


def _check_report(output: Path | None, run: Path) -> None:
    """Raise a `ConfigError` before any episode is played if the report cannot be written."""
    file = output or run / _REPORTS
    try:
        if output and output.is_dir():
            raise _no_report(file, "it is a folder")
        _try_writing(output.parent if output else file)
    except OSError as error:
        raise _no_report(file, error.strerror) from error


def _no_report(file: Path, reason: str | None) -> ConfigError:
    return ConfigError(f"the report cannot be written to {file} ({reason}); choose --output")


def _try_writing(folder: Path) -> None:
    """Raise an OSError if a folder cannot be written to, or made in the nearest one above it."""
    TemporaryFile(dir=next(each for each in (folder, *folder.parents) if each.exists())).close()


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
