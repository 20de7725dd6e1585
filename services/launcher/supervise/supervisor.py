"""Decisions of the launcher: which process to start, restart or end, and when the run is over.

Plain decisions: what happened and the time go in, what to do comes out. `ClusterRunner` carries it out.
"""

from __future__ import annotations

import enum
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.config.services import LauncherSettings
from tidemill.process import ENV_FAILED, GPU_LOST, HELD_UP
from tidemill.services.launcher.supervise.service_spec import (
    ACTOR,
    EVALUATOR,
    INFERENCE,
    LEARNER,
    PARAMSERVER,
    REPLAY,
    ServiceSpec,
)

RESTART_WINDOW_S = 600.0
"""Restarts are counted over the last ten minutes, or since the process was last healthy. If it has a history, they are
counted until it gets further."""

_MAX_BACKOFF_S = 30.0
_CONFIG_ERROR = 2
_STOP_ORDER = ((ACTOR,), (INFERENCE,), (LEARNER, EVALUATOR), (REPLAY, PARAMSERVER))
"""Writers before what they write to: the learner's last version still finds the parameter server. The evaluator draws
the learning curve while the learner saves."""
_UNSAVED = {
    LEARNER: ": its updates since the last checkpoint are lost",
    EVALUATOR: ": the learning curve may be missing; `tidemill plot` draws one",
}
"""What is missing after a process that was asked to end was killed or failed, by its kind."""


class Phase(enum.Enum):
    """State of a process, as far as the launcher knows."""

    PENDING = "pending"
    STARTING = "starting"
    SERVING = "serving"
    BACKOFF = "restarting"
    STOPPING = "stopping"
    ENDED = "ended"
    SILENT = "silent"
    """It does not answer; all that can be known of a process that something else started."""


class Verb(enum.Enum):
    """An operation on a process."""

    START = "start"
    FINISH = "finish"
    """Ask the evaluator for the final evaluation."""
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True)
class Action:
    """One action to take now."""

    verb: Verb
    service: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: the exit code of the launcher and the reason."""

    exit_code: int
    reason: str


@dataclass
class Process:
    """State of one service."""

    spec: ServiceSpec
    phase: Phase = Phase.PENDING
    deadline_s: float | None = None
    """When the present phase has lasted too long, or in a backoff long enough."""
    restarts: deque[float] = field(default_factory=deque)
    """When it was restarted, of the restarts that still count."""
    was_healthy: bool = False
    """Whether it has been healthy since it was last started."""
    recorded_bytes: int = 0
    """Size of its history when it last ended."""
    restarts_total: int = 0
    reason: str = ""
    """Reason for its last restart."""
    fault: str = ""
    """Reason the launcher kills it; empty if it does not."""

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.phase in (Phase.STARTING, Phase.SERVING, Phase.STOPPING)

    def may_lose(self, exit_code: int) -> bool:
        """True if it is a learner that ends by itself, with this code, before it has saved what it was asked to."""
        is_killed_here = self.deadline_s is None  # which has been said
        is_asked = self.phase is Phase.STOPPING and self.spec.kind == LEARNER and not is_killed_here
        return is_asked and exit_code not in (0, -signal.SIGTERM)


class Supervisor:
    """Makes the launcher's decisions. Times are seconds of one monotonic clock."""

    def __init__(self, specs: Sequence[ServiceSpec], settings: LauncherSettings) -> None:
        """Know the services; nothing is started before `start`."""
        self.settings = settings
        self.processes = {spec.name: Process(spec) for spec in specs}
        """Every service by name, in the order of starting."""
        self.outcome: Outcome | None = None
        """How the run ends; None while it continues. The processes may still be stopping, see `is_over`."""
        self.learner_was_down = False
        """Whether the learner had failed and was not back when the evaluator ended the run."""
        self._is_finishing = False
        self.stop_was_requested = False
        """Whether somebody has asked it to end."""

    @property
    def all_serve(self) -> bool:
        """Whether every service is healthy."""
        return all(process.phase is Phase.SERVING for process in self.processes.values())

    @property
    def failed_learner(self) -> Process | None:
        """The learner, if it was restarted after a failure."""
        processes = self.processes.values()
        return next((each for each in processes if each.spec.kind == LEARNER and each.restarts_total), None)

    @property
    def awaits_evaluator(self) -> bool:
        """Whether training has ended, but the evaluator that is to measure it is not healthy."""
        waits = self._is_finishing and self.outcome is None
        return waits and any(p.spec.kind == EVALUATOR and p.phase is not Phase.SERVING for p in self.processes.values())

    @property
    def is_over(self) -> bool:
        """Whether the run has an outcome and no process is left."""
        return self.outcome is not None and not any(process.is_alive for process in self.processes.values())

    def start(self, now_s: float) -> list[Action]:
        """Start what needs nothing else."""
        return self._start_ready(now_s)

    def on_serving(self, name: str, now_s: float) -> list[Action]:
        """A service became healthy."""
        process = self.processes[name]
        if process.phase is not Phase.STARTING:
            return []
        process.phase, process.deadline_s, process.was_healthy = Phase.SERVING, None, True
        finish = [Action(Verb.FINISH, name)] if self._is_finishing and process.spec.kind == EVALUATOR else []
        return finish + self._start_ready(now_s)

    def on_out_of_reach(self, name: str, why: str, now_s: float) -> list[Action]:
        """A service that was started cannot be asked for its health.

        The run ends if it was its first start, which no restart mends. Otherwise it was reached before: it has the
        time for a start, in which a certificate may be renewed, and is then restarted.
        """
        process = self.processes[name]
        if process.phase is not Phase.STARTING or process.restarts_total or self.outcome is not None:
            return []
        return self._end(Outcome(_CONFIG_ERROR, f"{name} is out of reach: {why}"), now_s)

    def on_silent(self, name: str, silent_s: float, *, listens: bool) -> list[Action]:
        """A service that was healthy leaves health checks unanswered.

        Args:
            name: The service.
            silent_s: For how long.
            listens: Whether connections to it are taken. If not it may be starting again by itself, as several
                learners do, and has the time for a start.
        """
        process = self.processes[name]
        limit_s = self.settings.frozen_timeout_s if listens else self.settings.start_timeout_s
        if process.phase is not Phase.SERVING or process.fault or silent_s < limit_s:
            return []
        process.fault = f"did not answer for {silent_s:g} s"
        return [Action(Verb.KILL, name)]

    def on_not_started(self, name: str, why: str, now_s: float) -> list[Action]:
        """A process could not be started, which counts as an exit."""
        self.processes[name].fault = f"could not be started: {why}"
        return self.on_exit(name, 1, now_s)

    def on_exit(
        self, name: str, exit_code: int, now_s: float, *, has_result: bool = False, recorded_bytes: int = 0
    ) -> list[Action]:
        """A process ended.

        Args:
            name: Its service.
            exit_code: Its exit code; -N if signal N killed it.
            now_s: The time.
            has_result: Whether the run's result is written, which the evaluator does last.
            recorded_bytes: Size of its history; 0 if it has none.
        """
        process = self.processes[name]
        was_stopping, may_lose = process.phase is Phase.STOPPING, process.may_lose(exit_code)
        process.phase, process.deadline_s = Phase.ENDED, None
        kind = process.spec.kind
        if self.outcome is not None:
            if may_lose and process.was_healthy:
                self._note_unsaved(process, describe_exit(exit_code))
            return self._stop_next(now_s)
        if kind == EVALUATOR and has_result:  # a crash while it closes its environments loses nothing
            failed = self.failed_learner
            self.learner_was_down = failed is not None and failed.phase in (Phase.STARTING, Phase.BACKOFF)
            return self._end(Outcome(0, "finished"), now_s)
        if kind == LEARNER and exit_code == 0:
            return self._finish(now_s)
        if was_stopping:
            return []
        if exit_code in (_CONFIG_ERROR, ENV_FAILED):
            is_refused = exit_code == _CONFIG_ERROR
            why = "refused its settings or files" if is_refused else describe_exit(exit_code)
            return self._end(Outcome(_CONFIG_ERROR if is_refused else 1, f"{name} {why}"), now_s)
        got_further = process.spec.history is None or recorded_bytes > process.recorded_bytes
        process.recorded_bytes = max(recorded_bytes, process.recorded_bytes)
        return self._restart_later(
            process,
            process.fault or describe_exit(exit_code),
            now_s,
            counts=exit_code != HELD_UP or process.spec.history is not None,
            forgets=process.was_healthy and got_further,
        )

    def on_timer(self, now_s: float) -> list[Action]:
        """Time passed: carry out what was due."""
        actions = []
        for name, process in self.processes.items():
            if process.deadline_s is not None and now_s >= process.deadline_s:
                actions.append(self._on_deadline(name, process, now_s))
        return actions

    def on_stop_requested(self, now_s: float) -> list[Action]:
        """Ctrl-C or SIGTERM: end the processes in order, if they do not end already; when asked again, at once."""
        is_first, self.stop_was_requested = not self.stop_was_requested, True
        if self.outcome is None:
            return self._end(Outcome(0, "stopped as asked"), now_s)
        if is_first:
            return []
        self.outcome = Outcome(1, "killed at the second request: unsaved work is lost")
        alive = {name: process for name, process in self.processes.items() if process.is_alive}
        for process in alive.values():
            process.phase, process.deadline_s = Phase.STOPPING, None
        return [Action(Verb.KILL, name) for name in alive]

    def next_timer_s(self) -> float | None:
        """Return the time at which `on_timer` is due; None if nothing is."""
        deadlines = (process.deadline_s for process in self.processes.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _start_ready(self, now_s: float) -> list[Action]:
        if self.outcome is not None or self._is_finishing:
            return []
        return [
            self._start(name, process, now_s)
            for name, process in self.processes.items()
            if process.phase is Phase.PENDING and self._are_serving(process.spec.after)
        ]

    def _are_serving(self, names: Sequence[str]) -> bool:
        return all(self.processes[name].phase is Phase.SERVING for name in names)

    def _start(self, name: str, process: Process, now_s: float) -> Action:
        process.phase, process.deadline_s = Phase.STARTING, now_s + self.settings.start_timeout_s
        process.fault, process.was_healthy = "", False
        return Action(Verb.START, name)

    def _restart_later(
        self, process: Process, reason: str, now_s: float, *, counts: bool, forgets: bool
    ) -> list[Action]:
        """Restart a process after a pause, unless too many restarts were counted.

        Those of the last ten minutes count. Older ones count, too, while the process does not become healthy, since
        that many starts may take longer, or does not get further than its history. One that stepped its environment
        until that hung may get further the next time: it is not counted, unless it has a history.
        """
        restarts, oldest_s = process.restarts, now_s - RESTART_WINDOW_S
        while forgets and restarts and restarts[0] <= oldest_s:
            restarts.popleft()
        process.reason = reason
        if counts and len(restarts) >= self.settings.max_restarts:
            is_older = restarts and restarts[0] <= oldest_s
            count = f"{len(restarts)} restarts" + " within ten minutes" * (not is_older)
            return self._end(Outcome(1, f"{process.spec.name} {reason}, after {count}"), now_s)
        backoff_s = min(self.settings.restart_backoff_s * 2.0 ** len(restarts), _MAX_BACKOFF_S)
        if counts:
            restarts.append(now_s)
        process.restarts_total += 1
        process.phase, process.deadline_s = Phase.BACKOFF, now_s + backoff_s
        return []

    def _on_deadline(self, name: str, process: Process, now_s: float) -> Action:
        if process.phase is Phase.BACKOFF:
            return self._start(name, process, now_s)
        if process.phase is Phase.STARTING:
            process.fault = f"was not healthy within {self.settings.start_timeout_s:g} s (launcher.start_timeout_s)"
        if process.phase is Phase.STOPPING:
            self._note_killed(process)
        process.deadline_s = None
        return Action(Verb.KILL, name)

    def _note_killed(self, process: Process) -> None:
        """Say that a process is killed because it does not end, and what that loses."""
        within = f"within {self.settings.stop_timeout_s:g} s (launcher.stop_timeout_s)"
        self._note_unsaved(process, f"did not end {within} and was killed")

    def _note_unsaved(self, process: Process, how: str) -> None:
        """Say how a process ended that has not saved its work, and what that loses."""
        kind = process.spec.kind
        process.fault = f"{how}{_UNSAVED.get(kind, '')}"
        if self.outcome is None or kind not in _UNSAVED:
            return
        # A finished run has published what its result measures.
        fails = kind == LEARNER and self.stop_was_requested
        reason = f"{self.outcome.reason}; {process.spec.name} {process.fault}"
        self.outcome = Outcome(self.outcome.exit_code or int(fails), reason)

    def _finish(self, now_s: float) -> list[Action]:
        """The learner has ended by itself: no more acting; the evaluator measures the last version."""
        self._is_finishing = True
        evaluator = next((p for p in self.processes.values() if p.spec.kind == EVALUATOR), None)
        if evaluator is None or evaluator.phase in (Phase.PENDING, Phase.ENDED):
            return self._end(Outcome(0, "the learner has finished"), now_s)
        actions = self._terminate((ACTOR,), now_s)  # clients of an inference service may play the last evaluation
        if evaluator.phase is Phase.SERVING:
            actions.append(Action(Verb.FINISH, evaluator.spec.name))
        return actions

    def _end(self, outcome: Outcome, now_s: float) -> list[Action]:
        self.outcome = outcome
        for process in self.processes.values():
            if process.phase is not Phase.STOPPING:  # what was asked to end and does not is killed in time
                process.deadline_s = None
            if process.phase in (Phase.PENDING, Phase.BACKOFF):
                process.phase = Phase.ENDED
        return self._stop_next(now_s)

    def _stop_next(self, now_s: float) -> list[Action]:
        """Ask the next group to end, once the one before it has ended."""
        for kinds in _STOP_ORDER:
            group = [process for process in self.processes.values() if process.spec.kind in kinds]
            if any(process.is_alive for process in group):
                return self._terminate(kinds, now_s)
        return []

    def _terminate(self, kinds: Sequence[str], now_s: float) -> list[Action]:
        actions = []
        for name, process in self.processes.items():
            if process.spec.kind not in kinds:
                continue
            if process.phase in (Phase.STARTING, Phase.SERVING):
                process.phase, process.deadline_s = Phase.STOPPING, now_s + self.settings.stop_timeout_s
                actions.append(Action(Verb.TERMINATE, name))
            elif not process.is_alive:
                process.phase, process.deadline_s = Phase.ENDED, None
        return actions


def describe_exit(exit_code: int) -> str:
    """Return a description of how a process ended."""
    if exit_code < 0:
        return f"was killed by signal {-exit_code}"
    if exit_code == HELD_UP:
        return "ended because its environment hung"
    if exit_code == ENV_FAILED:
        return "ended because its environment failed (env.on_failure, env.max_restarts)"
    if exit_code == GPU_LOST:
        return "ended because it has lost its GPU"
    return f"ended with exit code {exit_code}"
