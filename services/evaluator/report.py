"""The report of a run that has ended: curve, video, GIF, contact sheet and result.json, written in this order."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill import formats
from tidemill.atomic_files import is_there, write_atomically
from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import described
from tidemill.params.run_end import FILMING, RESULT
from tidemill.params.version import ParamsMetadata, Version
from tidemill.scores import Score
from tidemill.services.evaluator.curve_drawing import CurveDrawing
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.params_source import ParamsSource
from tidemill.services.evaluator.protocol import Runner
from tidemill.services.evaluator.run_logs import RunLogs
from tidemill.services.evaluator.verdict import RunVerdict, reaches_target

VIDEO = Path("videos") / "best.mp4"
CONTACT_SHEET = Path("videos") / "best.png"
GIF = Path("videos") / "best.gif"

_log = structlog.get_logger()


@dataclass(frozen=True)
class Result:
    """Result of a run. None where a value does not apply."""

    run: str
    """Name of the run."""
    algorithm: str
    env_id: str
    seed: int
    solved: bool
    """Whether the target was reached, and confirmed if that was asked for."""
    reason: str
    """Reason the run ended."""
    end: str
    """How it ended in one phrase: target or limit, returns, version."""
    target_return: float | None
    mean_return: float | None
    """Mean raw return of the evaluation that decided; None if nothing was ever evaluated."""
    std_return: float | None
    min_return: float | None
    max_return: float | None
    median_return: float | None
    human_normalised: float | None
    """Mean in Atari games: 0 is random play, 1 a person; None elsewhere."""
    episodes: int
    """Episodes of that evaluation."""
    wall_s: float
    """Seconds of training when that evaluation ended, over all sessions; confirmation comes after it."""
    env_steps: int
    """Agent decisions behind its parameters."""
    learner_steps: int
    """Updates behind its parameters."""
    params_version: int
    confirmed_mean: float | None
    """Mean over fresh episodes with the same parameters; None without confirmation."""
    confirm_episodes: int
    """Episodes of the confirmation; 0 without."""
    failed_confirmations: int
    """Earlier means that reached the target without being confirmed by fresh episodes."""
    best_mean: float | None
    """Mean of the version that the tag `best` points at."""
    best_version: int
    """The one whose evaluation had the largest mean; one that fresh episodes confirmed comes before all others."""
    evaluations: int
    """Evaluations of the run."""
    learning_curve: str | None
    """File in the run's folder."""
    video: str | None
    """File in the run's folder."""
    mark: str = ""
    """Tag at the parameter server that marks this end; empty if a launcher ended the run. With other limits, or after a
    divergence with other settings, a run has another."""
    trained_env_steps: int = 0
    """Agent decisions behind the newest version, which may have no score; 0 if it is not known."""


def write_result(result: Result, folder: Path) -> None:
    """Write FOLDER/result.json, whole or not at all."""
    document = {formats.KEY: formats.NEWEST[formats.RESULT], **dataclasses.asdict(result)}
    write_atomically(folder / RESULT, json.dumps(document, indent=2) + "\n")


def write_report(
    verdict: RunVerdict,
    config: EvaluatorConfig,
    source: ParamsSource,
    runner: Runner,
    logs: RunLogs,
    drawing: CurveDrawing,
    *,
    mark: str = "",
    film: bool = True,
) -> Result:
    """Write the report; a curve or video that fails is logged and left out, the result is always written.

    Raises:
        OSError: The disk refused the result.
    """
    if has_curve := bool(logs.scores.rows):
        drawing.start()
    can_film = film and config.evaluator.video
    video = _film(config, source, runner, logs) if can_film and isinstance(runner, EpisodeRunner) else None
    curve = drawing.finish() if has_curve else None
    newest = source.newest()
    result = _summarise(verdict, config, logs, newest.version if newest else None, mark=mark, curve=curve, video=video)
    write_result(result, config.run.folder)
    _log.info("run ended", solved=result.solved, reason=result.reason, mean_return=result.mean_return)
    return result


def draw_curve(drawing: CurveDrawing, logs: RunLogs) -> None:
    """Draw the learning curve of a run that was interrupted, if it has one."""
    if logs.scores.rows:
        drawing.start()
        drawing.finish()


def _film(config: EvaluatorConfig, source: ParamsSource, runner: EpisodeRunner, logs: RunLogs) -> str | None:
    """Record a video as `_record`, unless an evaluator was killed while it did: a renderer may crash the process."""
    begun = config.run.folder / FILMING
    if is_there(begun):
        _log.warning("video not recorded", reason="the evaluator was killed while it filmed")
        return None
    with suppress(OSError):  # a disk that is full takes no video either
        begun.touch()
    try:
        return _record(config, source, runner, logs)
    finally:
        begun.unlink(missing_ok=True)


def _record(config: EvaluatorConfig, source: ParamsSource, runner: EpisodeRunner, logs: RunLogs) -> str | None:
    """Record a video of the best policy, its GIF and its contact sheet; return the video's file in the run's folder.

    None if there is none.
    """
    from tidemill.services.evaluator.contact_sheet import PictureSample, caption, draw_contact_sheet
    from tidemill.services.evaluator.gif import GifSample
    from tidemill.services.evaluator.video import record_video

    params = source.best()
    if params is None:
        return None
    settings, file = config.evaluator, config.run.folder / VIDEO
    sample, film = PictureSample(), GifSample()

    def keep(picture: NDArray[np.uint8]) -> None:
        sample.add(picture)
        film.add(picture)

    steps = settings.video_max_steps
    record = partial(record_video, seed=settings.seed, file=file, max_steps=steps, on_picture=keep)
    try:
        summary = runner.record(params, record)
    except Exception as error:  # the environment's code draws; the result does not depend on pictures
        _log.warning("video not recorded", reason=described(error))
        return None
    try:
        title = caption(config.env.id, config.agent.algorithm, params.number, summary)
        draw_contact_sheet(sample.shown(), config.run.folder / CONTACT_SHEET, title=title)
        logs.add_film(config.run.folder / GIF, film.write(config.run.folder / GIF), params.version)
    except Exception as error:
        _log.warning("pictures not written", reason=described(error))
    played = summary.episode_return if summary else None
    _log.info("video recorded", file=str(file), version=params.number, episode_return=played)
    return str(VIDEO)


def _describe_end(
    verdict: RunVerdict,
    target_return: float | None,
    score: Score | None,
    confirmation: Score | None,
    best: Score | None,
) -> str:
    """Return a description of a run's end, e.g. `target 200 reached, mean return 221.0, version 226`."""
    parts = [f"target {target_return:g} reached" if verdict.solved else verdict.reason]
    if score is not None:
        parts.append(f"mean return {score.mean:.1f}")
    if best is not None and not verdict.solved and (score is None or best.mean > score.mean):
        parts.append(f"best {best.mean:.1f} (version {best.params_version})")
    if confirmation is not None and verdict.solved:
        parts.append(f"confirmed {confirmation.mean:.1f}")
    if verdict.version is not None:
        parts.append(f"version {verdict.version}")
    return ", ".join(parts)


def _summarise(
    verdict: RunVerdict,
    config: EvaluatorConfig,
    logs: RunLogs,
    newest: Version | None,
    *,
    mark: str,
    curve: str | None,
    video: str | None,
) -> Result:
    """Return the summary of a run; of one that was never evaluated, the steps are those of its newest version."""
    trained = newest.metadata if newest is not None else ParamsMetadata()
    score = logs.scores.of_version(verdict.version) if verdict.version is not None else None
    best = logs.best()
    confirmation = logs.confirmations.of_version(verdict.version) if verdict.version is not None else None
    return Result(
        run=config.run.name,
        algorithm=config.agent.algorithm,
        env_id=config.env.id,
        seed=config.run.seed,
        solved=verdict.solved,
        reason=verdict.reason,
        end=_describe_end(verdict, config.run.target_return, score, confirmation, best),
        target_return=config.run.target_return,
        mean_return=score.mean if score else None,
        std_return=score.std if score else None,
        min_return=score.min if score else None,
        max_return=score.max if score else None,
        median_return=score.median if score else None,
        human_normalised=score.human_normalised if score else None,
        episodes=score.episodes if score else 0,
        wall_s=score.wall_s if score else round(logs.clock.wall_s(), 3),
        env_steps=score.env_steps if score else trained.env_steps,
        learner_steps=score.learner_steps if score else trained.learner_steps,
        params_version=score.params_version if score else newest.version if newest is not None else 0,
        confirmed_mean=confirmation.mean if confirmation else None,
        confirm_episodes=confirmation.episodes if confirmation else 0,
        failed_confirmations=sum(
            not reaches_target(config.run, row.mean)
            and (reached := logs.scores.of_version(row.params_version)) is not None
            and reaches_target(config.run, reached.mean)
            for row in logs.confirmations.rows
        ),
        best_mean=best.mean if best else None,
        best_version=best.params_version if best else 0,
        evaluations=len(logs.scores.rows),
        learning_curve=curve,
        video=video,
        mark=mark,
        trained_env_steps=trained.env_steps,
    )
