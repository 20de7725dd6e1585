"""The end of a process whose part of a run is done: it exits, or idles where it would otherwise be restarted.

`python -m tidemill.programs.idle RUN SERVICE METRICS_ADDRESS LOG_LEVEL [json]` replaces a process where a container
engine would restart it if it ended: it reports itself healthy, shows Prometheus that it idles, and waits to be stopped.
A learner's place is taken by a program that also answers for its status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import structlog
from prometheus_client import Gauge

from tidemill.config.run import RunSettings
from tidemill.process import run, stop_event
from tidemill.rpc.server import Health
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics

INTERRUPTED = 143
"""Exit code of a process that was asked to end before its run was over: 128 + SIGTERM."""

DIVERGED = 2
"""Exit code of a process whose run has ended because training diverged: as after a wrong setting, a restart would not
help."""

_log = structlog.get_logger()


def exit_or_idle(program: Sequence[str], settings: RunSettings, *, is_over: bool, has_diverged: bool = False) -> int:
    """Return the exit code of a process that has nothing more to do, or replace it by one that idles.

    Args:
        program: Module that idles in its place, and its arguments.
        settings: Of the run; its supervisor decides.
        is_over: Whether its part of the run is done; otherwise it was interrupted.
        has_diverged: Whether the run is over because training has diverged.
    """
    if settings.supervisor == "job" and not is_over:
        return INTERRUPTED
    if settings.supervisor == "job" and has_diverged:
        return DIVERGED
    if settings.supervisor == "engine" and is_over:
        # A new program, so that the memory of networks and tables is given back and old metrics are gone.
        os.execv(sys.executable, [sys.executable, "-P", "-m", *program])
    return 0


def show_idling() -> None:
    """Show Prometheus that this process idles."""
    Gauge("tidemill_resting", "1 for a process that has done its part of the run and waits to be stopped.").set(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Idle until SIGTERM; return the exit code."""

    def body() -> int:
        run_name, service, address, level, *form = sys.argv[1:] if argv is None else argv
        configure_logging(service, level=level, json="json" in form)
        identify(run_name, service)
        health = Health()
        stop = stop_event()
        show_idling()
        health.serving = True
        # The address is that of the process before, which was allowed to listen there.
        _log.info(
            "run is over, idling until stopped",
            metrics=serve_metrics(ServerSettings(metrics_address=address, insecure=True), health),
        )
        stop.wait()
        return 0

    return run("idle", body)


if __name__ == "__main__":
    sys.exit(main())
