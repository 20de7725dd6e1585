"""The evaluator's loop: newest version, evaluation, verdict; until the run is over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from prometheus_client import Counter, Gauge, Histogram

from tidemill.awake_clock import AwakeTimer
from tidemill.config.sections import EvaluatorConfig
from tidemill.params.run_end import read_divergence, version_at_earlier_end
from tidemill.params.version import BEST, EVALUATED, VERDICT, Params, ParamsMetadata
from tidemill.scores import NOT_EVALUATED, Score
from tidemill.services.evaluator.params_source import ParamsSource
from tidemill.services.evaluator.protocol import EpisodesFailed, Evaluation, Runner
from tidemill.services.evaluator.run_logs import RunLogs
from tidemill.services.evaluator.verdict import (
    RunVerdict,
    confirmation_seeds,
    evaluation_seeds,
    limit_reached,
    reaches_target,
)

_EPISODES = Counter("tidemill_evaluator_episodes_total", "Full episodes played, confirmations included.")
_FAILED = Counter(
    "tidemill_evaluator_failed_episodes_total",
    "Episodes left out of an evaluation or confirmation because their environment failed.",
)
_SECONDS = Histogram(
    "tidemill_evaluator_evaluation_seconds",
    "Duration of an evaluation.",
    buckets=(0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
_RETURN = Gauge("tidemill_evaluator_return_mean", "Mean raw return of the newest evaluation.")
_BEST_RETURN = Gauge("tidemill_evaluator_best_return_mean", "Mean raw return of the version tagged best.")
for _gauge in (_RETURN, _BEST_RETURN):
    _gauge.set(math.nan)  # 0 would be a score, for some games a good one
_VERSION = Gauge("tidemill_evaluator_params_version", "Version of the parameters evaluated last.")
_CONFIRMATIONS = Counter(
    "tidemill_evaluator_confirmations_total", "Confirmations on fresh episodes, by outcome.", ("outcome",)
)
_log = structlog.get_logger()

_PAUSE_S = 0.25
_HANG_S = 10.0  # beyond the bound of an evaluation, which is looked at between two steps: one of them does not return
_NOT_CONFIRMED = {
    False: "the mean reached the target, but fresh episodes did not confirm it",
    None: "the mean reached the target, but the confirmation was not completed",
}
"""By what `Evaluator._is_confirmed` returned."""


@dataclass(frozen=True)
class EvaluatorEvents:
    """Receivers of an evaluator's events."""

    on_evaluation: Callable[[Score], None] = lambda _: None
    """Called with each recorded evaluation; must not block."""
    on_limit: Callable[[int], None] = lambda _: None
    """Called with the version that is to be measured last when a limit ends the run, before it is: nothing should train
    meanwhile."""
    on_hang: Callable[[RunVerdict], None] = lambda _: None
    """Called in another thread, with how the run ends, when the environment holds the last evaluation up for so long
    that only the end of the process helps."""
    on_refusal: Callable[[int, str], None] = lambda _, __: None
    """Called with a version that got no score because the environment failed in its episodes, and the reason."""


class Evaluator:
    """Measures version after version. One thread; `stop` and `finish` are set from outside."""

    def __init__(
        self,
        config: EvaluatorConfig,
        source: ParamsSource,
        runner: Runner,
        logs: RunLogs,
        *,
        stop: threading.Event,
        finish: threading.Event,
        now: Callable[[], float] = time.monotonic,
        events: EvaluatorEvents | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            config: Settings of the run and of the evaluation.
            source: Where parameters come from.
            runner: Plays episodes with them.
            logs: Where scores go.
            stop: End now, without a result.
            finish: Training has ended: evaluate the newest version, then end with a result.
            now: Monotonic time in seconds.
            events: Who is told of what happens.
        """
        self._config, self._source, self._runner, self._logs = config, source, runner, logs
        self._stop, self._finish, self._now = stop, finish, now
        self._events = events or EvaluatorEvents()
        self._hang_s = _HANG_S
        self._due_s = now()
        self._tried = self._awaited = 0
        """Decisions behind the version tried last, which may have no score, and those that the next one waits for."""
        self._ending = ""  # why the run is over, once it is
        self._refusal = ""  # why the version that the run ends with has no score
        self._verdict: RunVerdict | None = None
        self._next_confirmation_seed = 0  # also after a confirmation that was not completed and is in no file
        self._continued_at = version_at_earlier_end(config.run.folder)  # 0 in the first session
        self._best_tagged = 0  # by this process: after a restart the tag is set once more
        if rows := logs.scores.rows:
            _show(rows[-1])
            _BEST_RETURN.set((logs.best() or rows[-1]).mean)

    def run(self) -> RunVerdict | None:
        """Evaluate until the run is over; return how it ended, or None if it was stopped.

        The version that decided is tagged as the verdict: the learner ends there. The parameter server may be
        starting again, so the run's last tags are tried for as long as a service waits for it at the start.
        """
        verdict = self._verdict = self._until_over()
        if verdict is not None and verdict.version is not None:
            wait_s = self._config.cluster.connect_timeout_s
            best = None if verdict.solved else self._logs.best()
            self._tag_best(verdict.version if best is None else best.params_version, wait_s)
            self._source.tag(VERDICT, verdict.version, wait_s)
        return verdict

    def without_more(self) -> RunVerdict | None:
        """Return the end of the run if nothing more can be measured, for another thread.

        None before the last evaluation: a process that is started again may complete it. The best version is tagged
        then, although its confirmation may hang.
        """
        if self._verdict is None and self._ending:
            self._settle_best()
            return self._unmeasured(self._ending)
        return self._verdict

    def step_limit_s(self) -> float:
        """Return the present time limit of a call of the environment, in seconds, for another thread.

        There is no limit of the evaluator's own before the run is over.
        """
        is_over = self._verdict is not None or self._ending or self._over(ParamsMetadata())
        return self._bound_s(1.0) + self._hang_s if is_over else math.inf

    def _until_over(self) -> RunVerdict | None:
        seen = self._logs.scores.last_version
        while not self._stop.is_set():
            if reason := self._over(ParamsMetadata()):
                return self._end(reason)
            params = self._next(seen)
            if params is None:
                continue
            if reason := self._over(params.version.metadata):
                return self._end(reason)
            seen = params.number
            if verdict := self._evaluate(params):
                return verdict
        return None

    def _over(self, metadata: ParamsMetadata) -> str:
        """Return the reason, other than scores, that the run is over; empty while it continues."""
        self._logs.clock.save_if_due()
        if self._finish.is_set():
            return "training has ended"
        return limit_reached(self._config.run, metadata, self._logs.clock.wall_s())

    def _next(self, seen: int) -> Params | None:
        """Return the newest version when the next evaluation is due; None periodically before that."""
        if self._now() < self._due_s:
            self._stop.wait(min(self._due_s - self._now(), _PAUSE_S))
            return None
        params = self._source.newer_than(seen)
        if params is None:
            return None
        metadata = params.version.metadata
        is_early = metadata.env_steps < self._config.evaluator.start_env_steps
        if is_early and not self._over(metadata):
            self._stop.wait(_PAUSE_S)
            return None
        return self._at_its_place(params)

    def _at_its_place(self, newest: Params) -> Params | None:
        """Return the first version after the next multiple of `every_env_steps` that was not missed.

        None, after a pause, without one.
        """
        every, scores = self._config.evaluator.every_env_steps, self._logs.scores.rows
        if not every or self._over(newest.version.metadata):
            return newest
        tried = max(self._tried, scores[-1].env_steps if scores else 0)
        due = max(tried // every + 1, math.ceil(self._config.evaluator.start_env_steps / every)) * every
        if newest.version.metadata.env_steps >= due:
            if params := self._source.first_after(due, every):
                return params
            if due == self._awaited:  # too few versions are kept to tell
                return newest
            self._tried = newest.version.metadata.env_steps  # all multiples so far were missed
        self._awaited = due
        self._stop.wait(_PAUSE_S)
        return None

    def _evaluate(self, params: Params) -> RunVerdict | None:
        """Evaluate a version, no longer than the run's time lasts; return how the run ends if it is solved."""
        self._due_s = self._now() + self._config.evaluator.min_interval_s
        self._tried = params.version.metadata.env_steps
        if decided := self._decided_before(params):
            return decided
        score = self._measure(params, lambda: self._stop.is_set() or bool(self._over(ParamsMetadata())))
        if score is None or not reaches_target(self._config.run, score.mean):
            return None
        if is_confirmed := self._is_confirmed(params):
            return self._solved(params.number)
        _log.info(_NOT_CONFIRMED[is_confirmed], version=params.number, mean=round(score.mean, 1))
        return None

    def _end(self, reason: str) -> RunVerdict | None:
        """Measure the newest version, unless that was done; return how the run ends, None if stopped."""
        self._refusal = ""
        params = self._source.newest(self._config.cluster.connect_timeout_s)  # the server may be starting again
        if params is None:
            self._refusal = "no parameters could be fetched"
            return None if self._stop.is_set() else self._unmeasured(reason)
        if decided := self._decided_before(params):
            return decided
        wall_s = self._logs.clock.wall_s()
        reason = (
            read_divergence(self._config.run.folder)
            or limit_reached(self._config.run, params.version.metadata, wall_s)
            or reason
        )
        self._ending = reason
        if not self._finish.is_set():
            self._events.on_limit(params.number)
        score = self._logs.scores.of_version(params.number) or self._measure_last(params, reason)
        if score is None:
            return None if self._stop.is_set() else self._unmeasured(reason)
        if not reaches_target(self._config.run, score.mean):
            return RunVerdict(False, reason, params.number)
        before = self._logs.confirmations.of_version(params.number)  # by an evaluator that this one replaces
        is_confirmed = self._is_confirmed(params) if before is None else reaches_target(self._config.run, before.mean)
        if is_confirmed:
            return self._solved(params.number)
        what = f"{reason}; {_NOT_CONFIRMED[is_confirmed]}"
        return None if self._stop.is_set() else RunVerdict(False, what, params.number)

    def _decided_before(self, params: Params) -> RunVerdict | None:
        """Return the end of the run if a version after as many updates was confirmed by an earlier evaluator.

        The learner went back to that version and published it under another number, so it is not to be confirmed again.
        A confirmation before an earlier end of the run does not count: the target or the task may have changed since.
        """
        steps, run = params.version.metadata.learner_steps, self._config.run
        rows = [row for row in self._logs.confirmations.rows if row.params_version > self._continued_at]
        held = (row.params_version for row in rows if row.learner_steps == steps and reaches_target(run, row.mean))
        return self._solved(number) if (number := next(held, None)) is not None else None

    def _measure_last(self, params: Params, reason: str) -> Score | None:
        """Evaluate the version that the run ends with, in bounded time; None if it took longer or was stopped."""
        with self._stopped_after(self._bound_s(1.0), lambda: self._events.on_hang(self._unmeasured(reason))) as stopped:
            return self._measure(params, stopped)

    def _bound_s(self, share: float) -> float:
        """Return the time limit in seconds of the last evaluation, or of one with `share` times its episodes."""
        return max(self._config.evaluator.last_timeout_s, 2.0 * self._logs.clock.longest_s) * max(share, 1.0)

    @contextmanager
    def _stopped_after(
        self, seconds: float, on_hang: Callable[[], object] = lambda: None
    ) -> Iterator[Callable[[], bool]]:
        """Give what is asked between two steps; `on_hang` is called if nothing has asked for long after the bound."""
        timer = AwakeTimer(seconds + self._hang_s, on_hang, self._now)
        timer.start()
        try:
            yield lambda: self._stop.is_set() or timer.clock() > seconds
        finally:
            timer.cancel()

    def _unmeasured(self, reason: str) -> RunVerdict:
        """Return the end of a run whose last version could not be measured: that of the previous score, if any."""
        rows = self._logs.scores.rows
        why = f": {self._refusal}" if self._refusal else ""
        what = f"{reason}; {NOT_EVALUATED}{why}"
        return RunVerdict(False, what, rows[-1].params_version if rows else None)

    def _measure(self, params: Params, is_stopped: Callable[[], bool]) -> Score | None:
        """Evaluate a version and record it; None if it was stopped, or the server has deleted the version."""
        settings = self._config.evaluator
        before = self._logs.best()
        is_kept = self._keep(params.number)
        if is_kept is False:
            return None
        started_s = self._now()
        evaluation = self._play(params, evaluation_seeds(settings.seed, settings.episodes), is_stopped)
        if evaluation is None or (is_kept is None and self._keep(params.number) is False):
            return None
        clock = self._logs.clock
        clock.longest_s = max(clock.longest_s, self._now() - started_s)
        score = self._logs.add(evaluation, params.version)
        self._events.on_evaluation(score)
        _EPISODES.inc(score.episodes)
        _SECONDS.observe(self._now() - started_s)
        _show(score)
        if before is None or not settings.confirm_episodes or not reaches_target(self._config.run, score.mean):
            self._settle_best()  # otherwise fresh episodes come first: the best so far would be lost if they refute it
        self._log(score, evaluation, self._now() - started_s)
        return score

    def _keep(self, number: int) -> bool | None:
        """Have the server keep a version; return whether it has it, None without an answer.

        A version that is deleted could not be passed on as the best one. The one that the run ends with is measured
        all the same.
        """
        if self._settle_best() is None:  # EVALUATED may be all that keeps the best
            return None
        is_kept = self._source.tag(EVALUATED, number)
        if is_kept is False and not self._ending:
            _log.warning("version not evaluated", version=number, reason="the parameter server has deleted it")
            return False
        return is_kept or None

    def _play(self, params: Params, seeds: range, is_stopped: Callable[[], bool]) -> Evaluation | None:
        """Play episodes; None if it was stopped, or if the environment failed in most of them, which ends no run."""
        failed = len(seeds)
        try:
            evaluation = self._runner.run(params, seeds, is_stopped)
            if evaluation is None:
                return None
            failed, refusal = evaluation.failed, evaluation.refusal
        except EpisodesFailed as error:
            evaluation, refusal = None, str(error)
        _FAILED.inc(failed)
        if refusal:
            self._refusal = refusal
            _log.warning("version not evaluated", version=params.number, reason=refusal)
            self._events.on_refusal(params.number, refusal)
            return None
        return evaluation

    def _is_confirmed(self, params: Params) -> bool | None:
        """Play fresh episodes and record them; return whether their mean reaches the target too, None as `_play`."""
        settings, before = self._config.evaluator, len(self._logs.confirmations.rows)
        if not settings.confirm_episodes:
            return True
        next_seed = max(self._next_confirmation_seed, self._logs.next_confirmation_seed)
        seeds = confirmation_seeds(settings.seed, settings.confirm_episodes, before, next_seed)
        self._next_confirmation_seed = seeds.stop
        if self._source.tag(EVALUATED, params.number) is False and not self._ending:  # deleted while it was away
            return None
        bound_s = self._bound_s(settings.confirm_episodes / settings.episodes)
        with self._stopped_after(bound_s) as stopped:
            evaluation = self._play(params, seeds, stopped)
        if evaluation is None:
            return None
        score = self._logs.add_confirmation(evaluation, params.version)
        holds = reaches_target(self._config.run, score.mean)
        _EPISODES.inc(score.episodes)
        _CONFIRMATIONS.labels("held" if holds else "failed").inc()
        self._settle_best()
        return holds

    def _solved(self, number: int) -> RunVerdict:
        return RunVerdict(True, f"a mean return of {self._config.run.target_return:g} was reached", number)

    def _settle_best(self) -> bool | None:
        """Tag the best version so far, if there is one, and show its mean; return as `ParamsSource.tag` does."""
        best = self._logs.best()
        if best is None:
            return True
        _BEST_RETURN.set(best.mean)
        return self._tag_best(best.params_version)

    def _tag_best(self, number: int, wait_s: float = 0.0) -> bool | None:
        if number == self._best_tagged:
            return True
        if is_set := self._source.tag(BEST, number, wait_s):
            self._best_tagged = number
        return is_set

    def _log(self, score: Score, evaluation: Evaluation, seconds: float) -> None:
        _log.info(
            "evaluated",
            version=score.params_version,
            mean=round(score.mean, 1),
            std=round(score.std, 1),
            min=round(score.min, 1),
            max=round(score.max, 1),
            env_steps=score.env_steps,
            mean_length=round(float(evaluation.lengths.mean()), 1),
            episodes=score.episodes,
            failed_episodes=evaluation.failed,
            seconds=round(seconds, 2),
        )


def _show(score: Score) -> None:
    _RETURN.set(score.mean)
    _VERSION.set(score.params_version)
