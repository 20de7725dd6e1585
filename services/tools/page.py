"""`tidemill page`: the status page of a cluster that another program started, such as Docker Compose."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidemill.config.digest import diverged_tag
from tidemill.config.load import load, read_settings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, TidemillError
from tidemill.installation import typed
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.params.run_end import result_of
from tidemill.process import stop_event
from tidemill.services.launcher.page.run_document import with_status_page
from tidemill.services.launcher.run.continuation import trained_s
from tidemill.services.launcher.run.folder import check_is_run, check_names_run, is_running, with_run_paths
from tidemill.services.launcher.view.endpoints import AskedEndpoints
from tidemill.services.launcher.view.poller import StatusPoller
from tidemill.services.launcher.view.processes import AskedServices
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.launcher.view.terminal import QuietView

_ABOUT = """Serve the status page of a running cluster, until it is stopped: tidemill page [RUN] [options].

RUN is the folder of a run that `tidemill train` started. For services started by hand or by an engine, the options
give their addresses (cluster.*) and the run (run.root, run.name).

  --insecure   listen on every address of this machine, not only on 127.0.0.1, without TLS: for a container whose port
               is published on 127.0.0.1. Whoever reaches the port can look; buttons need the token that is printed."""


_TOLD = 20
_COUNTS = ("learner_steps", "env_steps", "params_version")


def page(argv: Sequence[str]) -> int:
    """Serve the page until SIGTERM or Ctrl-C; return 0."""
    arguments = list(argv)
    host = "127.0.0.1"
    if "--insecure" in arguments:
        arguments.remove("--insecure")
        host = "0.0.0.0"
    run = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    config = _config_of(run, arguments) if run else load(RunConfig, arguments, prog="tidemill page", description=_ABOUT)
    config = replace(config, launcher=replace(config.launcher, status_page=True))
    stop = stop_event()
    told: deque[str] = deque(maxlen=_TOLD)
    endpoints = config.launcher.endpoints
    asked = AskedEndpoints(endpoints, told.append) if endpoints else AskedServices(config.cluster)
    lines_of = asked.lines if isinstance(asked, AskedEndpoints) else None
    with (
        contextlib.closing(asked),
        with_status_page(config, config.run.folder, _AddressView(sys.stdout), host=host, lines_of=lines_of) as view,
    ):
        poller = StatusPoller(config, config.run.folder, asked, is_new_session=False)
        clock = _RunClock(config.run.folder)
        with contextlib.closing(poller):
            while True:
                view.show(_at_its_end(clock.of_the_run(poller.poll()), config))
                while told:
                    view.event(told.popleft())
                if stop.wait(config.launcher.view_every_s):
                    return 0
                if run is not None and not is_running(run):
                    print(f"{run} has ended; its curves: `{typed('plot', run)}`", flush=True)
                    return 0


class _AddressView(QuietView):
    """Prints warnings and the address of the page."""

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Print the message and the lines that explain it."""
        print("\n".join([message, *(f"  {line}" for line in details)]), file=self._stream, flush=True)


def _config_of(run: Path, arguments: Sequence[str]) -> RunConfig:
    check_is_run(run)
    if not is_running(run):
        raise ConfigError(f"{run} is not running; its curves: `{typed('plot', run)}`")
    file = run / "cluster.yaml"
    config = load(RunConfig, arguments, prog=f"tidemill page {run}", description=_ABOUT, file=file)
    check_names_run(read_settings(RunConfig, file), config, run)
    return with_run_paths(config, run)


def _at_its_end(status: ClusterStatus, config: RunConfig) -> ClusterStatus:
    """Return the status with the end of the run that its folder tells: a learner that no engine restarts is gone."""
    if status.learner_answers:
        return status
    with contextlib.suppress(OSError, KeyError, TidemillError):
        result = result_of(config.run.folder, (config.run.end_tag, diverged_tag(config)))
        last = status.learner or LearnerStatus(**{name: result[name] for name in _COUNTS})
        learner = replace(last, state=LearnerState.ENDED, end=result["end"])
        return replace(status, learner=learner, learner_answers=True)
    return status


class _RunClock:
    """The time since a run was started, which may be before the page or after it, and before a learner's process."""

    def __init__(self, folder: Path) -> None:
        """Know of no run yet."""
        self._folder = folder
        self._before_s: float | None = None  # from the run's start to the page's

    def of_the_run(self, status: ClusterStatus) -> ClusterStatus:
        """Return the status with that time, which never goes back; 0 until a learner or the run's folder tells it."""
        known_s = max(status.learner.uptime_s if status.learner else 0.0, trained_s(self._folder))
        before_s = known_s - status.elapsed_s
        if self._before_s is not None:
            self._before_s = max(self._before_s, before_s)
        elif known_s > 0:
            self._before_s = before_s
        elapsed_s = 0.0 if self._before_s is None else self._before_s + status.elapsed_s
        return replace(status, elapsed_s=elapsed_s, earlier_s=0.0)
