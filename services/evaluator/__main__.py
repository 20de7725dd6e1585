"""One evaluator process: `python -m tidemill.services.evaluator --config FILE`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial

import structlog
import torch

from tidemill.atomic_files import is_there
from tidemill.config.digest import diverged_tag
from tidemill.config.load import load
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.watch import EnvWatch, watched_spec
from tidemill.errors import TidemillError
from tidemill.loggers.callbacks import CallbackThread, make_callbacks
from tidemill.params.run_end import (
    HAS_DIVERGED,
    IS_OVER,
    RunEnd,
    clear_divergence,
    note_divergence,
    read_divergence,
    result_of,
    set_result_aside,
)
from tidemill.params.version import VERDICT
from tidemill.process import HELD_UP, keep_freed_memory, leave, run, signal_event, stop_event
from tidemill.programs.idle import exit_or_idle
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics
from tidemill.scores import Score
from tidemill.services.evaluator.curve_drawing import CurveDrawing
from tidemill.services.evaluator.episode_runner import EpisodeRunner
from tidemill.services.evaluator.evaluator import Evaluator, EvaluatorEvents
from tidemill.services.evaluator.params_source import ParamsSource
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.evaluator.protocol import Runner
from tidemill.services.evaluator.report import draw_curve, write_report
from tidemill.services.evaluator.room import when_there_is_room
from tidemill.services.evaluator.run_logs import RunLogs
from tidemill.services.evaluator.simulator_runner import SimulatorRunner
from tidemill.services.evaluator.verdict import RunVerdict, reaches_target

_CHECKED = ("config.yaml", "scores.csv")
"""Files of a run that a command has checked, or that was evaluated before there was a bound of the seed."""

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an evaluator until the run is over or SIGTERM; return its exit code.

    SIGUSR1 asks for the final evaluation: the newest version is measured and the result written.
    """

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        about = "Evaluate published parameters by the run's protocol, and end the run at its target or a limit."
        config = load(EvaluatorConfig, arguments, prog="tidemill evaluator", description=about)
        if not any(is_there(config.run.folder / name) for name in _CHECKED):
            config.evaluator.check_seed()
        keep_freed_memory()
        configure_logging("evaluator", level=config.log.level, json=config.log.json)
        identify(config.run.name, "evaluator")
        torch.set_num_threads(config.evaluator.threads)
        stop, finish = stop_event(), signal_event(signal.SIGUSR1)
        with BackgroundServer("evaluator", config.evaluator.server) as server:
            address, metrics = server.start(), serve_metrics(config.evaluator.server, server.health)
            _log.info("listening", address=address, metrics=metrics)
            has_diverged = evaluate(config, server, stop, finish)
        idle = ["tidemill.programs.idle", config.run.name, "evaluator", config.evaluator.server.metrics_address]
        idle += [config.log.level, *(["json"] if config.log.json else [])]
        return exit_or_idle(idle, config.run, is_over=not stop.is_set(), has_diverged=has_diverged)

    return run("evaluator", body)


def evaluate(config: EvaluatorConfig, server: BackgroundServer, stop: threading.Event, finish: threading.Event) -> bool:
    """Put the parts of one evaluator together, evaluate until the run is over, write the report.

    Returns:
        Whether the run has ended because training diverged.
    """
    logs = _logs(config, stop)
    made = make_callbacks("evaluator.callbacks", config.evaluator.callbacks, config.run, config)
    timeout_s = config.cluster.connect_timeout_s
    source = ParamsSource(config.cluster.params, stop, connect_timeout_s=timeout_s, folder=config.run.params_folder)
    watch = EnvWatch(
        config.env, server.health, end=lambda _: os._exit(HELD_UP), has_end=True
    )  # never a reason to end training
    has_ended, runner = _runner(config, watch, finish, progress := ProgressFile(config.run.folder))
    drawing = CurveDrawing(config)
    with watch, closing(logs), closing(source), closing(runner), ExitStack() as stack:
        callbacks = stack.enter_context(closing(CallbackThread(made)))
        source.connect()
        end = None if config.run.supervisor == "launcher" else _RunEnds(config, finish, stack)
        server.set_serving(True)

        def on_limit(version: int) -> None:
            drawing.prepare()
            has_ended.set()
            _end_training(version, source, end, timeout_s)

        def give_up(verdict: RunVerdict) -> None:
            _log.error("the environment hangs; ending the run with the scores so far")
            own = CurveDrawing(config)  # the other may be in use, by the thread that hangs
            when_there_is_room(
                partial(write_report, verdict, config, source, runner, logs, own, mark=_mark(end), film=False), stop
            )
            os._exit(0)

        if end is None or not end.is_done():
            evaluator = Evaluator(
                config,
                source,
                runner,
                logs,
                stop=stop,
                finish=finish,
                events=EvaluatorEvents(
                    partial(_on_evaluation, config, drawing, callbacks), on_limit, give_up, progress.refuse
                ),
            )

            def on_hang() -> None:
                if (verdict := evaluator.without_more()) is not None:
                    give_up(verdict)

            longest_s = watch.limit_s
            watch.limit_s = lambda: min(longest_s(), evaluator.step_limit_s())
            watch.on_hang = on_hang
            verdict = evaluator.run()
            if verdict is not None:
                if end is not None:  # before the report, so that the learner does not continue to train meanwhile
                    end.conclude(verdict, timeout_s)
                when_there_is_room(
                    partial(write_report, verdict, config, source, runner, logs, drawing, mark=_mark(end)), stop
                )
                watch.on_hang = partial(os._exit, 0)  # all that is left is to close the environments
            else:
                draw_curve(drawing, logs)
        server.set_serving(False)
    _log.info("stopped")
    return end is not None and end.has_diverged


def _mark(end: _RunEnds | None) -> str:
    return "" if end is None else end.tag


def _on_evaluation(config: EvaluatorConfig, drawing: CurveDrawing, callbacks: CallbackThread, score: Score) -> None:
    if reaches_target(config.run, score.mean):
        drawing.prepare()  # the run is over if fresh episodes confirm it
    callbacks.on_evaluation(score)


def _end_training(version: int, source: ParamsSource, end: _RunEnds | None, timeout_s: float) -> None:
    """Let the learner end, and every service if the run has an end mark, before the last evaluation."""
    source.tag(VERDICT, version, timeout_s)
    if end is not None:
        with contextlib.suppress(TidemillError):  # marked again with the verdict
            end.mark(timeout_s, version)


def _logs(config: EvaluatorConfig, stop: threading.Event) -> RunLogs:
    """Return the records of the run, with its settings."""
    logs = when_there_is_room(lambda: RunLogs(config.run, time.monotonic, stop), stop)
    when_there_is_room(lambda: logs.write_hparams(config), stop)
    return logs


def _runner(
    config: EvaluatorConfig, watch: EnvWatch, finish: threading.Event, progress: ProgressFile
) -> tuple[threading.Event, Runner]:
    """Return the player of episodes, and the event that tells it that training has ended, as `finish` does."""
    has_ended = threading.Event()
    if config.evaluator.source == "simulators":
        return has_ended, SimulatorRunner(config, progress, lambda: has_ended.is_set() or finish.is_set())
    return has_ended, EpisodeRunner(config, progress, watch.made, watched_spec)


class _RunEnds:
    """The marks of a run's end that other processes set: its end, and that of training that has diverged."""

    def __init__(self, config: EvaluatorConfig, finish: threading.Event, stack: ExitStack) -> None:
        self._folder, self._finish = config.run.folder, finish
        self._tags = (config.run.end_tag, diverged_tag(config))
        self._end, self._divergence = (
            stack.enter_context(closing(RunEnd(config.cluster.params, tag))) for tag in self._tags
        )
        self._is_concluded = False
        self.has_diverged = False
        """Whether the run is over because training has diverged."""

    def is_done(self) -> bool:
        """True if the run is over and its result written; otherwise have `finish` set at its end.

        A result of an earlier end is kept under another name.
        """
        noted = read_divergence(self._folder)
        is_over = self._end.is_marked()
        self.has_diverged = not is_over and self._divergence.is_marked()
        if (is_over or self.has_diverged) and result_of(self._folder, self._tags):
            _log.info(HAS_DIVERGED if self.has_diverged else IS_OVER)
            return True
        set_result_aside(self._folder)
        is_of_before = noted and noted == read_divergence(self._folder)  # the learner may have noted one meanwhile
        if is_of_before and not is_over and not self.has_diverged:
            clear_divergence(self._folder)
        self._end.watch(self._finish.set)
        self._divergence.watch(self._on_divergence)
        return False

    @property
    def tag(self) -> str:
        """Name of the mark of the run's end, as far as it is known."""
        ended, diverged = self._tags
        return diverged if self.has_diverged else ended

    def mark(self, timeout_s: float, version: int | None) -> None:
        """Mark the run as over, as `RunEnd.mark` does."""
        self._end.mark(timeout_s, version)

    def conclude(self, verdict: RunVerdict, timeout_s: float) -> None:
        """Mark the run as over with a verdict; training that has diverged without a solution has another mark."""
        self._is_concluded = True  # a learner that diverges from here on changes nothing
        self.has_diverged = self.has_diverged and not verdict.solved
        if not self.has_diverged:
            self.mark(timeout_s, verdict.version)

    def _on_divergence(self) -> None:
        if self._is_concluded:
            return
        self.has_diverged = True
        if not read_divergence(self._folder):  # the learner has another disk
            with contextlib.suppress(OSError):
                note_divergence(self._folder, "training has diverged; the learner's log says how")
        self._finish.set()


if __name__ == "__main__":
    leave(main())
