"""One evaluator process: `python -m services.evaluator --config FILE`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing

import structlog
import torch

from services.evaluator.evaluator import Evaluator
from services.evaluator.examiner import Examiner
from services.evaluator.params_source import ParamsSource
from services.evaluator.records import Records
from services.evaluator.report import write_report
from tidemill.allocator import keep_freed_memory
from tidemill.config.load import load
from tidemill.config.sections import EvaluatorConfig
from tidemill.process import run, signal_event, stop_event
from tidemill.rpc.background import BackgroundServer
from tidemill.telemetry import configure_logging, serve_metrics

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an evaluator until the run is over or SIGTERM; return its exit code.

    SIGUSR1 asks for the final evaluation: the newest version is measured and the result written.
    """

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        about = "Measures published parameters by protocol and ends the run at its target or limit."
        config = load(EvaluatorConfig, arguments, prog="tidemill evaluator", description=about)
        keep_freed_memory()
        configure_logging("evaluator", level=config.log.level, json=config.log.json)
        torch.set_num_threads(config.evaluator.threads)
        stop, finish = stop_event(), signal_event(signal.SIGUSR1)
        with BackgroundServer("evaluator", config.evaluator.server) as server:
            address, metrics = server.start(), serve_metrics(config.evaluator.server, server.health)
            _log.info("listening", address=address, metrics=metrics)
            evaluate(config, server, stop, finish)
        return 0

    return run("evaluator", body)


def evaluate(config: EvaluatorConfig, server: BackgroundServer, stop: threading.Event, finish: threading.Event) -> None:
    """Put the parts of one evaluator together, evaluate until the run is over, write what remains."""
    records = Records(config.run, time.monotonic)
    timeout_s = config.cluster.connect_timeout_s
    source = ParamsSource(config.cluster.params, stop, connect_timeout_s=timeout_s)
    with closing(records), closing(source), closing(Examiner(config)) as examiner:
        source.connect()
        server.set_serving(True)
        ending = Evaluator(config, source, examiner, records, stop=stop, finish=finish).run()
        if ending is not None:
            write_report(ending, config, source, examiner, records)
        server.set_serving(False)
    _log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
