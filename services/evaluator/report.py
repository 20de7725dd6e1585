"""What remains of a run that has ended: curve, video and result.json, written in this order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog

from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import TidemillError
from tidemill.services.evaluator.ending import Ending
from tidemill.services.evaluator.examiner import Examiner
from tidemill.services.evaluator.params_source import ParamsSource
from tidemill.services.evaluator.records import Records
from tidemill.services.evaluator.result import Result, write_result

CURVE = Path("plots") / "learning_curve.png"
VIDEO = Path("videos") / "best.mp4"

_log = structlog.get_logger()


def write_report(
    ending: Ending, config: EvaluatorConfig, source: ParamsSource, examiner: Examiner, records: Records
) -> Result:
    """Write what remains; a curve or video that fails is left out and logged, the result never is."""
    curve = draw(config, records)
    video = film(config, source, examiner) if config.evaluator.video else None
    result = result_of(ending, config, records, curve=curve, video=video)
    write_result(result, config.run.folder)
    _log.info("run ended", solved=result.solved, reason=result.reason, mean_return=result.mean_return)
    return result


def draw(config: EvaluatorConfig, records: Records) -> str | None:
    """Draw the learning curve; return its file in the run's folder, None if there is nothing to draw."""
    from tidemill.services.evaluator.curve import draw_curve  # matplotlib takes seconds to import

    scores, run = records.scores.rows, config.run
    if not scores:
        return None
    title = f"{run.name}: {config.agent.algorithm} on {config.env.id}, seed {run.seed}"
    try:
        draw_curve(scores, run.folder / CURVE, title=title, target=run.target_return)
    except OSError as error:
        _log.warning("no learning curve", reason=str(error))
        return None
    return str(CURVE)


def film(config: EvaluatorConfig, source: ParamsSource, examiner: Examiner) -> str | None:
    """Record a video of the best policy; return its file in the run's folder, None if there is none."""
    from tidemill.services.evaluator.video import record_video

    params = source.best()
    if params is None:
        return None
    settings, file = config.evaluator, config.run.folder / VIDEO
    record = partial(record_video, seed=settings.seed, file=file, max_steps=settings.video_max_steps)
    try:
        summary = examiner.film(params, record)
    except TidemillError as error:
        _log.warning("no video", reason=str(error))
        return None
    played = summary.episode_return if summary else None
    _log.info("video", file=str(file), version=params.number, episode_return=played)
    return str(VIDEO)


def result_of(
    ending: Ending, config: EvaluatorConfig, records: Records, *, curve: str | None, video: str | None
) -> Result:
    """Return the summary of a run."""
    score = records.scores.of_version(ending.version) if ending.version is not None else None
    best = records.best()
    confirmations = records.confirmations.rows
    confirmation = records.confirmations.of_version(ending.version) if ending.version is not None else None
    return Result(
        run=config.run.name,
        algorithm=config.agent.algorithm,
        env_id=config.env.id,
        seed=config.run.seed,
        solved=ending.solved,
        reason=ending.reason,
        target_return=config.run.target_return,
        mean_return=score.mean if score else None,
        std_return=score.std if score else None,
        min_return=score.min if score else None,
        max_return=score.max if score else None,
        median_return=score.median if score else None,
        human_normalised=score.human_normalised if score else None,
        episodes=score.episodes if score else 0,
        wall_s=score.wall_s if score else round(records.clock.wall_s(), 3),
        env_steps=score.env_steps if score else 0,
        learner_steps=score.learner_steps if score else 0,
        params_version=score.params_version if score else 0,
        confirmed_mean=confirmation.mean if confirmation else None,
        confirm_episodes=confirmation.episodes if confirmation else 0,
        failed_confirmations=len(confirmations) - (1 if ending.solved and confirmation else 0),
        best_mean=best.mean if best else None,
        best_version=best.params_version if best else 0,
        evaluations=len(records.scores.rows),
        learning_curve=curve,
        video=video,
    )
