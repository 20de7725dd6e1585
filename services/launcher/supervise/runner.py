"""Execution of the supervisor's decisions. The launcher waits nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tidemill import linux
from tidemill.awake_clock import AwakeClock
from tidemill.errors import TidemillError
from tidemill.process import ENDS_WITH_INPUT, HELD_UP, StopRequests
from tidemill.programs.fork_client import ForkClient
from tidemill.programs.group_guard import MARK_VARIABLE
from tidemill.programs.groups import Groups
from tidemill.rpc.server import raise_open_files
from tidemill.services.launcher.run.folder import RunFolder, log_file
from tidemill.services.launcher.supervise.child import DEFAULTS, Child
from tidemill.services.launcher.supervise.fork_server import ForkServer
from tidemill.services.launcher.supervise.health import CHECK_EVERY_S, Silence, silences, until_serving
from tidemill.services.launcher.supervise.service_spec import LEARNER, ServiceSpec
from tidemill.services.launcher.supervise.supervisor import Action, Outcome, Phase, Supervisor, Verb, describe_exit

SESSION_VARIABLE = "TIDEMILL_SESSION_START_S"
"""Environment variable with the time when the launcher started the processes, on the system's monotonic clock.

Training time counts from then, over every restart of the process that counts it.
"""

_LOG_LINES = 8
_LOGS_EVERY_S = 2.0
_LONGEST_WAIT_S = 1.0
_INPUT = 0  # standard input
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Reporter(Protocol):
    """Receives the events of a cluster."""

    def event(self, message: str, details: Sequence[str] = ()) -> None:
        """Report one event, with lines that explain it."""


class ClusterRunner:
    """The processes of one run, from the first start to the last exit."""

    def __init__(
        self, supervisor: Supervisor, folder: RunFolder, reporter: Reporter, forks: ForkClient | None = None
    ) -> None:
        """Prepare; `run` starts, with services from a fork server if there is one already."""
        self._supervisor, self._folder, self._reporter = supervisor, folder, reporter
        self._children: dict[str, Child] = {}
        self._health_tasks: dict[str, asyncio.Task[None]] = {}
        self._exit_tasks: set[asyncio.Task[None]] = set()
        self._events: asyncio.Queue[Callable[[float], list[Action]]] = asyncio.Queue()
        """Each decides what its event asks for, given the time."""
        self._requests = StopRequests()
        """Whether a signal has asked it to stop."""
        self._started_s = time.monotonic()
        self._clock = AwakeClock(_LONGEST_WAIT_S)  # services continue while the launcher is suspended
        self.check_s = min(supervisor.settings.frozen_timeout_s / 2, CHECK_EVERY_S)
        specs = (process.spec for process in supervisor.processes.values())
        is_worth_it = linux.CAN_FORK and supervisor.settings.fork_services and any(spec.needs_torch for spec in specs)
        self._forks = ForkServer(DEFAULTS | os.environ, forks) if is_worth_it else None
        self._groups = Groups()

    def pid_of(self, name: str) -> int | None:
        """Return the process id of a service; None while it has no process."""
        child = self._children.get(name)
        return child.pid if child and self._supervisor.processes[name].is_alive else None

    async def run(self) -> Outcome:
        """Start the processes, keep them running, and return when the last one has ended."""
        raise_open_files()
        loop = asyncio.get_running_loop()
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
        for number in heard:
            loop.add_signal_handler(number, self._on_stop_signal, number)
        if ENDS_WITH_INPUT in os.environ:
            loop.add_reader(_INPUT, self._on_input)
        self._groups.start()
        bounding = asyncio.create_task(self._bound_logs())
        try:
            if self._forks is not None:
                self._forks.start()
            await self._perform(self._supervisor.start(self._clock()))
            while not self._supervisor.is_over:
                decide = await self._next_event()
                await self._perform(decide(self._clock()))
        finally:
            bounding.cancel()
            await self._abandon()
            loop.remove_reader(_INPUT)
            for number in heard:
                loop.remove_signal_handler(number)
        assert self._supervisor.outcome is not None  # is_over says so
        return self._supervisor.outcome

    def _on_stop_signal(self, number: int) -> None:
        if not self._requests.is_new(number):
            return
        self._events.put_nowait(self._on_stop_requested)
        if self._forks is not None:
            self._forks.give_up()

    def _on_input(self) -> None:
        """Stop the run if the program that holds the other end has ended; that does not count as a second request."""
        if not os.read(_INPUT, 1024):
            asyncio.get_running_loop().remove_reader(_INPUT)
            self._on_stop_signal(signal.SIGHUP)

    async def _next_event(self) -> Callable[[float], list[Action]]:
        if self._events.empty():
            due_s = self._supervisor.next_timer_s()
            left_s = _LONGEST_WAIT_S if due_s is None else max(due_s - self._clock(), 0.0)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), min(left_s, _LONGEST_WAIT_S))
        return self._on_timer if self._events.empty() else self._events.get_nowait()

    def _on_timer(self, now_s: float) -> list[Action]:
        actions = self._supervisor.on_timer(now_s)
        for action in actions:
            process = self._supervisor.processes[action.service]
            if action.verb is Verb.KILL and process.phase is Phase.STOPPING:
                self._reporter.event(f"{action.service} {process.fault}")
        return actions

    def _on_stop_requested(self, now_s: float) -> list[Action]:
        again = self._supervisor.stop_was_requested
        self._reporter.event("killing all processes" if again else "stopping; press Ctrl-C again to kill all processes")
        return self._supervisor.on_stop_requested(now_s)

    def _on_serving(self, name: str, child: Child, now_s: float) -> list[Action]:
        if self._children[name] is not child:  # an event of a process that was replaced
            return []
        self._reporter.event(f"{name} is ready")
        return self._supervisor.on_serving(name, now_s)

    def _on_out_of_reach(self, name: str, child: Child, why: str, now_s: float) -> list[Action]:
        if self._children[name] is not child:
            return []
        self._reporter.event(f"cannot check the health of {name}: {why}")
        return self._supervisor.on_out_of_reach(name, why, now_s)

    def _on_silent(self, name: str, child: Child, silence: Silence, _now_s: float) -> list[Action]:
        if self._children[name] is not child or self._supervisor.processes[name].phase is not Phase.SERVING:
            return []
        if silence.unknown:
            self._reporter.event(f"cannot check the health of {name}: {silence.unknown}")
            return []
        self._reporter.event(
            f"{name} has not answered for {silence.seconds:g} s" if silence.seconds else f"{name} answers again"
        )
        return self._supervisor.on_silent(name, silence.seconds, listens=silence.listens)

    def _on_not_started(self, name: str, why: str, now_s: float) -> list[Action]:
        actions = self._supervisor.on_not_started(name, why, now_s)
        process = self._supervisor.processes[name]
        pause_s = (process.deadline_s or now_s) - now_s
        again = f"; restarting in {pause_s:.1f} s" if process.phase is Phase.BACKOFF else ""
        self._reporter.event(f"{name} {process.fault}{again}")
        return actions

    def _on_exit(self, name: str, exit_code: int, now_s: float) -> list[Action]:
        self._health_tasks.pop(name).cancel()
        process = self._supervisor.processes[name]
        was_expected = process.phase is Phase.STOPPING and not process.may_lose(exit_code)
        has_result = (self._folder.path / "result.json").exists()
        history = process.spec.history
        recorded = history.stat().st_size if history and history.exists() else 0
        actions = self._supervisor.on_exit(name, exit_code, now_s, has_result=has_result, recorded_bytes=recorded)
        if process.phase is Phase.BACKOFF:
            pause_s = (process.deadline_s or now_s) - now_s
            lines = self._last_lines(name)
            why = f": {lines[-1]}" if exit_code == HELD_UP and lines else f" {process.reason}"
            self._reporter.event(f"{name}{why}; restarting in {pause_s:.1f} s", lines)
        elif exit_code and not was_expected:
            self._reporter.event(f"{name} {describe_exit(exit_code)}", self._last_lines(name))
        if process.spec.kind == LEARNER and self._supervisor.awaits_evaluator:
            self._reporter.event("training has ended; waiting for the evaluator, which is not ready")
        return actions

    def _last_lines(self, name: str) -> list[str]:
        return self._children[name].last_lines(_LOG_LINES)

    async def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            spec = self._supervisor.processes[action.service].spec
            if action.verb is Verb.START:
                await self._start(spec)
            elif child := self._children.get(spec.name):  # None: its first start failed
                if action.verb is Verb.TERMINATE and (watching := self._health_tasks.get(spec.name)):
                    watching.cancel()  # a call in progress would hold up its end
                child.send(action.verb.value)
        if self._forks is not None and self._supervisor.all_serve:
            self._forks.start()  # again, if it has ended

    async def _start(self, spec: ServiceSpec) -> None:
        log, mark = log_file(self._folder.path, spec.name), self._groups.new_mark()
        variables = {SESSION_VARIABLE: repr(self._started_s), MARK_VARIABLE: mark}
        try:
            child = await Child.start(spec, log, variables, self._forks)
        except OSError as error:  # such as too many open files
            self._events.put_nowait(partial(self._on_not_started, spec.name, error.strerror or str(error)))
            return
        self._groups.add(child.pid, mark)
        self._children[spec.name] = child
        self._health_tasks[spec.name] = asyncio.create_task(self._watch_health(spec, child))
        self._exit_tasks.add(task := asyncio.create_task(self._watch_exit(spec.name, child)))
        task.add_done_callback(self._exit_tasks.discard)

    async def _watch_health(self, spec: ServiceSpec, child: Child) -> None:
        try:
            await until_serving(spec.health_address)
        except TidemillError as error:
            self._events.put_nowait(partial(self._on_out_of_reach, spec.name, child, str(error)))
            return
        self._events.put_nowait(partial(self._on_serving, spec.name, child))
        async for silence in silences(spec.health_address, check_s=self.check_s):
            self._events.put_nowait(partial(self._on_silent, spec.name, child, silence))

    async def _bound_logs(self) -> None:
        """Keep the logs within their length, for an environment may print at every step."""
        most_bytes = round(self._supervisor.settings.log_max_mib * 2**20)
        while most_bytes:
            await asyncio.sleep(_LOGS_EVERY_S)
            for child in tuple(self._children.values()):
                await asyncio.to_thread(child.bound_log, most_bytes)

    async def _watch_exit(self, name: str, child: Child) -> None:
        code = await child.wait()
        with contextlib.suppress(OSError):  # such as too many open files: the guard still ends what is left
            self._groups.end(child.pid)
        self._events.put_nowait(partial(self._on_exit, name, code))

    async def _abandon(self) -> None:
        """Leave nothing behind, however `run` ends."""
        for task in self._health_tasks.values():
            task.cancel()
        for child in self._children.values():
            child.send("kill")
        if self._forks is not None:
            self._forks.close()
        await asyncio.gather(*self._health_tasks.values(), *self._exit_tasks, return_exceptions=True)
        self._groups.close()
