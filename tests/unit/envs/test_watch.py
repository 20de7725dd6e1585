"""The watch over environments: what it takes for a hang, what it says of it, and what it ends the process with."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import numpy as np
import pytest

from tests.support.envs import HangingEnv
from tests.support.naming import naming
from tests.support.waiting import wait_until
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import VectorEnv
from tidemill.envs.settings import EnvSettings
from tidemill.envs.watch import EnvWatch
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
        env.reset(1)
        time.sleep(0.5)  # ten times the limit
        env.step(_ACTION)
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
