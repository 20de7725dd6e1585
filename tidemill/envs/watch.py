"""Watchdog that ends a process whose environment hangs in a call, so that it is restarted.

Such a process looks healthy: its health checks are answered by other threads. What is timed is the environment alone,
so an actor that waits for the rate limiter, for parameters or for a server is not taken for one that hangs.
"""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from tidemill.closing import Closing
from tidemill.envs.interface import MasksActions, VectorEnv, VectorStep
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings, told_limit
from tidemill.logger import LateLogger
from tidemill.process import HELD_UP
from tidemill.rpc.server import Health
from tidemill.types import EnvSpec

_HANGS = Counter(
    "tidemill_env_hangs_total",
    "Calls of the environment that did not return within half of env.step_timeout_s, by the method called.",
    ("method",),
)
_log = LateLogger()

_LONGEST_POLL_S = 1.0
_POLLS = 20  # in a time limit
_GRACE_S = 60.0
_LIBRARIES = (sysconfig.get_path("stdlib"), str(Path(__file__).parent))

_Made = TypeVar("_Made")


class EnvWatch(Closing):
    """Times the calls of the environments of a process, which are made one at a time by the thread that creates it."""

    def __init__(
        self,
        settings: EnvSettings,
        health: Health | None = None,
        *,
        end: Callable[[int], Any] = os._exit,
        has_end: bool = False,
    ) -> None:
        """Start a thread that watches, unless `env.step_timeout_s` is 0 and no limit can come later.

        Args:
            settings: The limit, and what the environment is called in messages.
            health: Reports the environment once half of the limit has passed.
            end: Ends the process with an exit code.
            has_end: Whether `limit_s` may become finite although `env.step_timeout_s` is 0.
        """
        self._name = f"env.vector {settings.vector!r}" if settings.vector else f"env.id {settings.id!r}"
        self._health, self._end = health, end
        own_s = 0.0 if settings.isolate else settings.longest_call_s  # a separate process has its own limits
        self._watches = own_s > 0 or has_end
        longer = "reset" if settings.reset_timeout_s > settings.step_timeout_s else "step"
        self._why = f"env.{longer}_timeout_s" if own_s else "the run is over"
        self.limit_s: Callable[[], float] = lambda: own_s or math.inf
        """Returns how long a call may take by now, in seconds; called in another thread.

        A call is timed from when that is finite.
        """
        self.on_hang: Callable[[], None] = lambda: None
        """Called in another thread when the limit has passed, before the process is ended."""
        self._thread_id = threading.get_ident()
        self._calls = self._steps = 0
        self._method = ""  # of the call that is being made
        self._envs = 1  # that it makes, one after another
        self._is_idle = False  # no call has been made since the last poll, and the timer is not set
        self._present_s = math.inf  # the limit at the last poll
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="env-watch", daemon=True) if self._watches else None
        if self._thread is not None:
            self._thread.start()

    def made(self, make: Callable[[], VectorEnv]) -> VectorEnv:
        """Make an environment whose constructor and calls are timed."""
        return self.watched(self.timed(make))

    def timed(self, make: Callable[[], _Made], envs: int = 1) -> _Made:
        """Return the result of `make`, timed by itself also within another call; each of `envs` has the whole limit."""
        self._envs = envs
        try:
            with self.timing("the constructor"):
                return make()
        finally:
            self._envs = 1

    def watched(self, env: VectorEnv) -> VectorEnv:
        """Return an environment whose calls are timed."""
        return _WatchedEnv(env, self) if self._watches else env

    @contextmanager
    def timing(self, method: str) -> Iterator[None]:
        """Time a call of a method of an environment."""
        outer = self._method
        self._calls += 1
        self._method = method
        if self._is_idle:
            self._is_idle = False
            self._set_timer()
        try:
            yield
        finally:
            self._calls += 1  # the time of an outer call begins again
            self._steps += method == "step"
            self._method = outer

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_LONGEST_POLL_S)

    def _watch(self) -> None:
        try:
            self._count_polls()
        finally:
            self._is_idle = False  # no call sets the timer from here on
            faulthandler.cancel_dump_traceback_later()

    def _count_polls(self) -> None:
        """Count polls instead of reading a clock: a process that was stopped meanwhile has not waited.

        One that made calls until it was stopped for more than twice the limit and a minute may end, by its timer.
        """
        poll_s = min(self.limit_s() / _POLLS, _LONGEST_POLL_S)
        call, waited_s, has_warned = 0, 0.0, False
        while not self._closed.wait(poll_s):
            self._present_s = self.limit_s()
            limit_s, method, calls = self._present_s * self._envs, self._method, self._calls
            if limit_s < math.inf:
                self._is_idle = not method and calls == call
                if not self._is_idle:
                    self._set_timer()
                elif calls == self._calls:  # otherwise a call has just begun
                    faulthandler.cancel_dump_traceback_later()
            if not method or calls != call or limit_s == math.inf:
                if has_warned:
                    _log.info("environment responds again", env=self._name, after_s=round(waited_s, 1))
                    self._complain("")
                call, waited_s, has_warned = calls, 0.0, False
                continue
            waited_s += poll_s
            if waited_s >= limit_s:
                self._give_up(method, waited_s)
            elif waited_s >= limit_s / 2 and not has_warned:
                has_warned = True
                _HANGS.labels(method).inc()
                _log.warning("environment does not respond", env=self._name, method=method, for_s=round(waited_s, 1))
                self._complain(f"{self._name} has not returned from {method} for {waited_s:.1f} s")

    def _set_timer(self) -> None:
        """For an environment that holds the interpreter's lock, under which the watch's thread does not run either."""
        faulthandler.dump_traceback_later(2 * self._present_s * self._envs + _GRACE_S, exit=True)

    def _complain(self, complaint: str) -> None:
        if self._health is not None:
            self._health.complain(complaint)

    def _give_up(self, method: str, waited_s: float) -> None:
        sys.stderr.write(
            f"{self._name} has not returned from {method} for {waited_s:.1f} s{self._place()}, after {self._steps:,} "
            f"steps of this process ({told_limit(self._why, method, self._envs)})\n"
        )
        sys.stderr.flush()
        try:
            self.on_hang()
        except Exception:  # it has nobody else to tell, and the process has to end
            traceback.print_exc()
        for child in multiprocessing.active_children():  # of an asynchronous vector environment
            child.kill()
        self._end(HELD_UP if self._steps else 1)

    def _place(self) -> str:
        """Return the line of the user's code that is being run; empty if there is none."""
        stack = reversed(traceback.extract_stack(sys._current_frames().get(self._thread_id)))
        for frame in takewhile(lambda each: each.filename != __file__, stack):
            if not frame.filename.startswith(_LIBRARIES) and "site-packages" not in frame.filename:
                return f" ({Path(frame.filename).name}, line {frame.lineno})"
        return ""


def watched_spec(settings: EnvSettings) -> EnvSpec:
    """Return `spec_of(settings)`; a constructor that hangs ends the process, which calls it also with `env.isolate`."""
    with EnvWatch(replace(settings, isolate=False, max_memory_mib=0)) as watch:
        return watch.timed(partial(spec_of, settings))


class _WatchedEnv:
    """A `VectorEnv` that tells a watch of its calls."""

    def __init__(self, env: VectorEnv, watch: EnvWatch) -> None:
        self._env, self._watch = env, watch

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    @property
    def num_envs(self) -> int:
        return self._env.num_envs

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        env: Any = self._env
        masks: MasksActions = env
        return masks.action_mask

    def reset(self, seed: int) -> NDArray[Any]:
        with self._watch.timing("reset"):
            return self._env.reset(seed)

    def step(self, action: NDArray[Any]) -> VectorStep:
        with self._watch.timing("step"):
            return self._env.step(action)

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        with self._watch.timing("render"):
            return self._env.render(env_index)

    def close(self) -> None:
        with self._watch.timing("close"):
            self._env.close()
