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
from pathlib import Path

import structlog
import torch

from tidemill.config.load import load
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.watch import EnvWatch
from tidemill.errors import TidemillError
from tidemill.loggers.callbacks import CallbackThread, make_callbacks
from tidemill.params.run_end import RESULT, RunEnd, set_result_aside
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

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an evaluator until the run is over or SIGTERM; return its exit code.

    SIGUSR1 asks for the final evaluation: the newest version is measured and the result written.
    """

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        about = "Evaluate published parameters by the run's protocol, and end the run at its target or a limit."
        config = load(EvaluatorConfig, arguments, prog="tidemill evaluator", description=about)
        keep_freed_memory()
        configure_logging("evaluator", level=config.log.level, json=config.log.json)
        identify(config.run.name, "evaluator")
        torch.set_num_threads(config.evaluator.threads)
        stop, finish = stop_event(), signal_event(signal.SIGUSR1)
        with BackgroundServer("evaluator", config.evaluator.server) as server:
            address, metrics = server.start(), serve_metrics(config.evaluator.server, server.health)
            _log.info("listening", address=address, metrics=metrics)
            evaluate(config, server, stop, finish)
        idle = ("tidemill.programs.idle", config.run.name, "evaluator", config.evaluator.server.metrics_address)
        return exit_or_idle(idle, config.run, is_over=not stop.is_set())

    return run("evaluator", body)


def evaluate(config: EvaluatorConfig, server: BackgroundServer, stop: threading.Event, finish: threading.Event) -> None:
    """Put the parts of one evaluator together, evaluate until the run is over, write the report."""
    logs = _logs(config, stop)
    made = make_callbacks("evaluator.callbacks", config.evaluator.callbacks, config.run, config)
    timeout_s = config.cluster.connect_timeout_s
    source = ParamsSource(config.cluster.params, stop, connect_timeout_s=timeout_s, folder=config.run.params_folder)
    watch = EnvWatch(
        config.env, server.health, end=lambda _: os._exit(HELD_UP), has_end=True
    )  # never a reason to end training
    has_ended, runner = _runner(config, watch, finish)
    drawing = CurveDrawing(config)
    with watch, closing(logs), closing(source), closing(runner), ExitStack() as stack:
        callbacks = stack.enter_context(closing(CallbackThread(made)))
        source.connect()
        end = None if config.run.supervisor == "launcher" else _run_end(config, finish, stack)
        server.set_serving(True)

        def on_limit(version: int) -> None:
            drawing.prepare()
            has_ended.set()
            _end_training(version, source, end, timeout_s)

        def give_up(verdict: RunVerdict) -> None:
            _log.error("the environment hangs in a step or reset; ending the run with the scores so far")
            own = CurveDrawing(config)  # the other may be in use, by the thread that hangs
            when_there_is_room(partial(write_report, verdict, config, source, runner, logs, own, film=False), stop)
            os._exit(0)

        if end is None or not _has_ended(end, config.run.folder):
            evaluator = Evaluator(
                config,
                source,
                runner,
                logs,
                stop=stop,
                finish=finish,
                events=EvaluatorEvents(partial(_on_evaluation, config, drawing, callbacks), on_limit, give_up),
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
                    end.mark(timeout_s, verdict.version)
                when_there_is_room(partial(write_report, verdict, config, source, runner, logs, drawing), stop)
                watch.on_hang = partial(os._exit, 0)  # all that is left is to close the environments
            else:
                draw_curve(drawing, logs)
        server.set_serving(False)
    _log.info("stopped")


def _on_evaluation(config: EvaluatorConfig, drawing: CurveDrawing, callbacks: CallbackThread, score: Score) -> None:
    if reaches_target(config.run, score.mean):
        drawing.prepare()  # the run is over if fresh episodes confirm it
    callbacks.on_evaluation(score)


def _end_training(version: int, source: ParamsSource, end: RunEnd | None, timeout_s: float) -> None:
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


def _runner(config: EvaluatorConfig, watch: EnvWatch, finish: threading.Event) -> tuple[threading.Event, Runner]:
    """Return the player of episodes, and the event that tells it that training has ended, as `finish` does."""
    progress, has_ended = ProgressFile(config.run.folder), threading.Event()
    if config.evaluator.source == "simulators":
        return has_ended, SimulatorRunner(config, progress, lambda: has_ended.is_set() or finish.is_set())
    return has_ended, EpisodeRunner(config, progress, watch.watched)


def _run_end(config: EvaluatorConfig, finish: threading.Event, stack: ExitStack) -> RunEnd:
    """Return the end of the run; another process that marks it sets `finish`."""
    end = stack.enter_context(closing(RunEnd(config.cluster.params, config.run.end_tag)))
    end.watch(finish.set)
    return end


def _has_ended(end: RunEnd, folder: Path) -> bool:
    """True if the run is over and its result written; a result of an earlier end is kept under another name."""
    if not end.is_marked():
        set_result_aside(folder)
        return False
    is_written = (folder / RESULT).exists()
    if is_written:
        _log.info("run is already over: it reached its target or a limit; raise that to continue the run")
    return is_written


if __name__ == "__main__":
    leave(main())
