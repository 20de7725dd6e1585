"""The watch over environments: what it takes for a hang, what it says of it, and what it ends the process with."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import numpy as np
import pytest

from tests.support.envs import HangingEnv
from tests.support.naming import naming
from tests.support.processes import stop_beyond
from tests.support.waiting import WAIT_S, crowd, wait_until
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import VectorEnv
from tidemill.envs.settings import EnvSettings
from tidemill.envs.watch import _POLLS, EnvWatch
from tidemill.errors import ConfigError
from tidemill.process import HELD_UP
from tidemill.rpc.server import Health

_ACTION = np.zeros(1, np.int64)


class _Scene:
    """An environment that hangs in a separate thread, and its watch."""

    def __init__(self, method: str, call: int, limit_s: float) -> None:
        self.env, self.health = HangingEnv(method, call), Health()
        self.health.serving = True
        self.codes: list[int] = []
        self.heard = threading.Event()
        self.returned = threading.Event()
        self._settings = EnvSettings("tests.support.envs:hanging", step_timeout_s=limit_s)
        self.told: list[str] = []
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self) -> None:
        with EnvWatch(self._settings, self.health, end=self._end) as watch:
            watch.on_hang = lambda: self.told.append("hang")
            with closing(watch.made(self._make)) as env:
                self._act(env)
        self.returned.set()

    def _make(self) -> VectorEnv:
        self.env._count("the constructor")
        return GymnasiumVectorEnv(lambda: self.env, 1)

    def _act(self, env: VectorEnv) -> None:
        env.reset(1)
        for _ in range(self.env._call + 2):
            env.step(_ACTION)
        if self.env._method == "reset":
            env.reset(2)

    def _end(self, code: int) -> None:
        self.codes.append(code)
        self.heard.set()
        self.env.released.set()  # the process would be over

    def close(self) -> None:
        self.env.released.set()
        self._thread.join(60)


@contextmanager
def _hanging(method: str = "step", call: int = 3, limit_s: float = 0.2) -> Iterator[_Scene]:
    with closing(_Scene(method, call, limit_s)) as scene:
        yield scene


class _Polls(threading.Event):
    """The polls of a watch, which from now on come when they are called for, however busy the machine is."""

    def __init__(self, watch: EnvWatch) -> None:
        super().__init__()
        self._wanted, self._waiting = threading.Semaphore(0), threading.Semaphore(0)
        watch._closed = self
        assert self._waiting.acquire(timeout=60)

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.release()
        self._wanted.acquire()
        return self.is_set()

    def set(self) -> None:
        super().set()
        self._wanted.release()

    def __call__(self, count: int) -> None:
        for _ in range(count):
            self._wanted.release()
            assert self._waiting.acquire(timeout=60)


@pytest.mark.parametrize("method", ["step", "reset", "close"])
def test_call_that_does_not_return_ends_the_process(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The line names environment, method, time and place, and the exit code asks for another start."""
    with _hanging(method, 1 if method == "close" else 2) as scene:
        assert scene.heard.wait(60)
        assert scene.returned.wait(60)
    assert scene.told[0] == "hang"
    assert scene.codes[0] == HELD_UP
    said = capfd.readouterr().err
    assert f"env.id 'tests.support.envs:hanging' has not returned from {method} for 0.2 s (envs.py, line " in said


def test_environment_that_is_made_in_a_step_is_timed_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """One that is made again after a failure; what hangs in the step afterwards is the step.

    The limit that applies is named.
    """
    said = list[str]()
    end = lambda _: said.append(capfd.readouterr().err)  # noqa: E731
    with EnvWatch(EnvSettings("x", step_timeout_s=0.1, reset_timeout_s=0.2), end=end) as watch, watch.timing("step"):
        watch.timed(lambda: wait_until(lambda: said, "the end of the process", 60))
        wait_until(lambda: "has not returned from step" in said[-1], "another end", 60)
    assert "has not returned from the constructor" in said[0]
    assert "(env.reset_timeout_s)" in said[0]


@pytest.mark.parametrize("method", ["reset", "the constructor"])
def test_first_call_that_does_not_return_is_a_failed_start(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that never stepped would only hang again, so its restarts are counted."""
    with _hanging(method, 1) as scene:
        assert scene.heard.wait(60)
    assert scene.codes[0] == 1
    assert f"has not returned from {method} for 0.2 s (envs.py, line " in capfd.readouterr().err


def test_health_reports_a_call_at_half_its_time_until_it_returns() -> None:
    """`/healthz` names the environment meanwhile; the process continues when the call has returned."""
    with _hanging(limit_s=20.0) as scene:
        wait_until(lambda: "has not returned from step" in scene.health.complaint(), "a complaint", 60)
        scene.env.released.set()
        assert scene.returned.wait(60)
        assert scene.codes == []


def test_limit_may_come_while_a_call_lasts() -> None:
    """With `step_timeout_s` 0 it may take as long as it likes; then it is timed from where there is a limit."""
    env, codes, ended, limits = HangingEnv("reset", 1), list[int](), threading.Event(), [math.inf]

    def end(code: int) -> None:
        codes.append(code)
        env.released.set()  # the process would be over
        ended.set()

    def play() -> None:
        with EnvWatch(EnvSettings("x", step_timeout_s=0.0), end=end, has_end=True) as watch:
            watch.limit_s = lambda: limits[-1]
            watch.watched(GymnasiumVectorEnv(lambda: env, 1)).reset(1)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    assert not ended.wait(1.5)  # longer than a poll
    limits.append(0.5)
    assert ended.wait(60)
    thread.join(60)
    assert codes == [1]


def test_time_between_calls_is_not_counted() -> None:
    """An actor that waits for the rate limiter is not one that hangs."""
    codes: list[int] = []
    with EnvWatch(EnvSettings("x", step_timeout_s=0.05), end=codes.append) as watch:
        env = watch.watched(GymnasiumVectorEnv(lambda: HangingEnv(call=100), 1))
        polls = _Polls(watch)
        env.reset(1)
        polls(10 * _POLLS)
        env.step(_ACTION)
    assert codes == []


def test_batch_has_the_time_of_each_environment_to_be_made(capfd: pytest.CaptureFixture[str]) -> None:
    """At its limit the message says how it is counted, and which setting gives it longer."""
    said = list[str]()
    end = lambda _: said.append(capfd.readouterr().err)  # noqa: E731
    with EnvWatch(EnvSettings("x", step_timeout_s=0.1), end=end) as watch:
        polls = _Polls(watch)
        watch.timed(lambda: polls(5 * _POLLS), 20)
        assert said == []
        watch.timed(lambda: polls(3 * _POLLS), 2)
    assert "has not returned from the constructor for 0.2 s" in said[0]
    assert "(env.step_timeout_s for each of 2 environments; set env.reset_timeout_s to give it longer)" in said[0]


def test_step_is_timed_from_the_end_of_what_was_made_in_it() -> None:
    """The time that its batch has had to be made again is not held against the step."""
    codes = list[int]()
    with EnvWatch(EnvSettings("x", step_timeout_s=0.4), end=codes.append) as watch:
        polls = _Polls(watch)
        with watch.timing("step"):
            watch.timed(lambda: polls(2 * _POLLS), 20)
            polls(_POLLS // 2)
    assert codes == []


def test_zero_watches_nothing() -> None:
    """The environment is used as it is."""
    with EnvWatch(EnvSettings("x", step_timeout_s=0.0)) as watch:
        env = GymnasiumVectorEnv(HangingEnv, 1)
        assert watch.watched(env) is env
    with pytest.raises(ConfigError, match=naming("env.step_timeout_s -1.0")):
        EnvSettings("x", step_timeout_s=-1.0)


def test_process_ends_whatever_is_done_about_a_hang(capfd: pytest.CaptureFixture[str]) -> None:
    """An error of what is called before the end is printed and does not replace it."""
    with _hanging() as scene:
        scene.told = cast(Any, None)  # so that the callback raises
        assert scene.heard.wait(60)
    assert scene.codes[0] == HELD_UP
    assert "AttributeError" in capfd.readouterr().err


def test_watch_that_fails_ends_nothing_later() -> None:
    """Nor does one that is closed: the timer that is set for the whole process ends with it."""
    script = """
import threading, time
from tidemill.envs import watch
from tidemill.envs.settings import EnvSettings

watch._GRACE_S, failed = 0.5, threading.Event()
threading.excepthook = lambda _: failed.set()
with watch.EnvWatch(EnvSettings("x", step_timeout_s=0.1), end=lambda _: 1 / 0) as watched, watched.timing("step"):
    assert failed.wait(60)
time.sleep(1.0)  # longer than twice the limit and the grace
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_call_after_the_end_of_the_watch_sets_no_timer() -> None:
    """Nobody would take it back: the process would end long after a call that returned."""
    script = """
import time
from tidemill.envs import watch
from tidemill.envs.settings import EnvSettings

watch._GRACE_S = 0.2
with watch.EnvWatch(EnvSettings("x", step_timeout_s=0.2)) as watched:
    time.sleep(0.5)  # polls without a call
with watched.timing("close"):
    pass
time.sleep(1.5)  # longer than twice the limit and the grace
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


_IDLE = """
import ctypes, sys, time
from tidemill.envs import watch
from tidemill.envs.settings import EnvSettings

watch._GRACE_S = 0.5
with watch.EnvWatch(EnvSettings("x", step_timeout_s=float(sys.argv[1]))) as watched:
    with watched.timing("step"):
        time.sleep(0.2)
    time.sleep(0.5)  # several polls
    print(flush=True)
    input()
    with watched.timing("step"):
        {}
"""
"""Program whose environment waits between two calls. The process's timer has twice the limit and half a second."""
_LIMIT_S = math.ceil(min(crowd(), 3.0))


def test_process_that_is_stopped_between_calls_continues() -> None:
    """A call ends the process, not that it waited: Ctrl-Z and `fg` after lunch."""
    command = [sys.executable, "-c", _IDLE.format("time.sleep(0.1)"), str(_LIMIT_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        stop_beyond(program, 2 * _LIMIT_S + 1.0)
        program.communicate(b"\n", WAIT_S)
    assert program.returncode == 0


def test_call_that_holds_the_interpreters_lock_ends_the_process_after_a_pause() -> None:
    """The thread that watches does not run then; the timer that the call has set does."""
    command = [sys.executable, "-c", _IDLE.format("ctypes.PyDLL(None).sleep(600)"), str(_LIMIT_S)]
    ended = subprocess.run(command, input=b"\n", capture_output=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
    assert b"Timeout (0:00:0%.1f" % (2 * _LIMIT_S + 0.5) in ended.stderr
