"""Answers for a learner that has ended: `python -m tidemill.services.learner.ended`, with the learner's settings.

Where a container engine would restart the learner, this program takes its place. It holds no network and no data: what
it reports comes from the parameter server and from the run's result.json, and it waits to be stopped.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from prometheus_client import Gauge

from tidemill.config.digest import diverged_tag
from tidemill.config.load import load
from tidemill.config.sections import LearnerConfig
from tidemill.errors import TidemillError
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.params.client import ParamsClient
from tidemill.params.run_end import is_marked, result_of
from tidemill.params.version import Version
from tidemill.process import leave, run, stop_event
from tidemill.programs.idle import show_idling
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import Backoff
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status.control import Control

ENDED_LEARNER = "tidemill.services.learner.ended"
_REFRESH_S = 5.0
_END = Gauge("tidemill_run_end_info", "1 for a run that has ended; how, in the label.", ["end"])

_log = structlog.get_logger()


class RunThatEnded:
    """Facts about a run after its end, or after a stop of its learner, which marks no end: the run can continue."""

    def __init__(self, config: LearnerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet but the settings."""
        self._config, self._clock = config, clock
        self._started_s = clock()
        self._tags = (config.run.end_tag, diverged_tag(config))
        self._version: Version | None = None
        self.is_marked: bool | None = None
        """Whether the end of the run is marked, as by the evaluator; None before the parameter server has answered."""

    def ask(self, client: ParamsClient) -> None:
        """Look up the version that the run ended with, or was stopped with.

        Raises:
            TidemillError: The parameter server does not answer.
        """
        found = client.list_versions()
        newest = found.versions[-1].version if found.versions else 0
        marked = [found.tags[tag] for tag in self._tags if is_marked(found, tag)]
        number, self.is_marked = (*marked, newest)[0], bool(marked)
        self._version = next((version for version in found.versions if version.version == number), None)

    def status(self) -> LearnerStatus:
        """Return the status of the learner that has ended."""
        version = self._version
        end = self._end(version)
        _END.clear()
        _END.labels(end).set(1)
        return LearnerStatus(
            state=LearnerState.ENDED,
            learner_steps=version.metadata.learner_steps if version else 0,
            env_steps=version.metadata.env_steps if version else 0,
            params_version=version.version if version else 0,
            uptime_s=self._clock() - self._started_s,
            max_learner_steps=self._config.run.max_learner_steps,
            end=end,
        )

    def _end(self, version: Version | None) -> str:
        """Return the evaluator's words for the end; it may not have written them yet, or to another disk."""
        if version and not self.is_marked:
            return f"stopped with version {version.version}; start the learner again to continue"
        with suppress(OSError, KeyError):
            return str(result_of(self._config.run.folder, self._tags)["end"])
        return f"ended with version {version.version}" if version else "ended"


def marks(config: LearnerConfig) -> tuple[bool, bool]:
    """Ask the parameter server for the marks of the run's end.

    Returns:
        Whether the run is over, and whether that is because training has diverged. Neither if a launcher ends the run,
        or if the parameter server does not answer.
    """
    if config.run.supervisor == "launcher":
        return False, False
    with suppress(TidemillError), ParamsClient(config.cluster.params) as client:
        found = client.list_versions()
        is_over, has_diverged = (is_marked(found, tag) for tag in (config.run.end_tag, diverged_tag(config)))
        return is_over or has_diverged, has_diverged and not is_over
    return False, False


def main(argv: Sequence[str] | None = None) -> int:
    """Report the end of the run until SIGTERM; return the exit code."""

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        config = load(LearnerConfig, arguments, prog="tidemill learner", description="Reports the end of its run.")
        configure_logging("learner", level=config.log.level, json=config.log.json)
        identify(config.run.name, "learner")
        stop = stop_event()
        ended, control = RunThatEnded(config), Control(stop)
        control.stop(
            "it has ended; start the learner again to continue, with a higher target or limit if one was reached"
        )
        show_idling()
        with BackgroundServer("learner", config.learner.server) as server:
            LearnerServicer(control, ended.status).add_to(server.server)
            address = server.start()
            server.set_serving(True)  # before a probe can ask
            metrics = serve_metrics(config.learner.server, server.health)
            _log.info("run is over, idling until stopped", address=address, metrics=metrics)
            _look_up(ended, config, stop)
            while not stop.wait(_REFRESH_S):
                if not ended.is_marked:
                    _look_up(ended, config, stop)
                ended.status()  # also what Prometheus is shown: the evaluator writes its result after the end
        return 0

    return run("learner", body)


def _look_up(ended: RunThatEnded, config: LearnerConfig, stop: threading.Event) -> None:
    """Ask the parameter server until it has answered."""
    backoff = Backoff()
    with ParamsClient(config.cluster.params) as client:
        while not stop.is_set():
            was_marked = ended.is_marked
            try:
                ended.ask(client)
                if ended.is_marked is not was_marked:
                    _log.info("run ended", end=ended.status().end)
                return
            except TidemillError as error:
                _log.debug("cannot look up how the run ended, retrying", reason=str(error))
                stop.wait(backoff.next_s())


if __name__ == "__main__":
    leave(main())
