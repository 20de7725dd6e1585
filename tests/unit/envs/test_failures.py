"""When a failed environment is restarted, and when it has failed too often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.support.clock import Clock
from tests.support.naming import naming
from tidemill.envs import isolated
from tidemill.envs.failures import KINDS, Restarts, count_failure, failure_counts
from tidemill.envs.interface import EpisodeSummary
from tidemill.envs.make import make_env, make_isolated, make_surviving
from tidemill.envs.parts import as_failure
from tidemill.envs.settings import EnvSettings
from tidemill.errors import EnvFailed

_ACTION = np.zeros(1, np.int64)
_ERROR = EnvFailed("it broke", kind="raised", trace="Traceback: here\n")


def _restarts(clock: Clock, units: int = 1, **settings: object) -> Restarts:
    return Restarts(EnvSettings(**settings), units, clock)  # type: ignore[arg-type]


def test_pauses_double_and_the_first_restart_has_none() -> None:
    """0, 0.1, 0.2 ... seconds; none is longer than ten."""
    clock = Clock()
    restarts, waited_s = _restarts(clock, max_restarts=12), []
    for _ in range(10):
        restarts.failed(0, _ERROR)
        began_s = clock.now_s
        while not restarts.is_due(0):
            clock.now_s += 0.05
        waited_s.append(clock.now_s - began_s)
    assert waited_s[:4] == pytest.approx([0, 0.1, 0.2, 0.4], abs=0.06)
    assert waited_s[-1] == pytest.approx(10, abs=0.06)


def test_default_budget_gives_a_bug_up_within_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight failures without a step in between end it, after 6.3 s of pauses, with the traceback."""
    clock = Clock()
    restarts = _restarts(clock)
    for _ in range(7):
        restarts.failed(0, _ERROR)
        while not restarts.is_due(0):
            clock.now_s += 0.01
    with pytest.raises(EnvFailed, match=naming("7 200 env.max_restarts")) as raised:
        restarts.failed(0, _ERROR)
    assert (raised.value.is_final, raised.value.kind) == (True, "raised")
    assert clock.now_s < 7
    assert "Traceback: here" in capsys.readouterr().err


def test_log_names_the_environment_that_failed() -> None:
    """Of several that each have a process, where every message begins with environment 0; a batch is one unit."""
    with capture_logs() as logs:
        _restarts(Clock(), units=3).failed(2, _ERROR)
        _restarts(Clock()).failed(0, _ERROR)
    assert [line.get("environment") for line in logs] == [2, None]


def test_steps_between_failures_give_the_budget_back() -> None:
    """One that fails every hundred steps is restarted forever; another environment has a separate budget."""
    restarts = _restarts(Clock(), units=2, max_restarts=3)
    both, first = np.array([True, True]), np.array([True, False])
    for _ in range(50):
        restarts.failed(0, _ERROR)
        for _ in range(100):
            restarts.stepped(first)
    for _ in range(3):
        restarts.failed(1, _ERROR)
    restarts.stepped(both)
    with pytest.raises(EnvFailed):
        restarts.failed(1, _ERROR)


def test_policy_stop_gives_up_at_once() -> None:
    """The message names the setting."""
    with pytest.raises(EnvFailed, match=naming("env.on_failure 'stop'")) as raised:
        _restarts(Clock(), on_failure="stop").failed(0, _ERROR)
    assert raised.value.is_final


def test_policy_drop_has_the_same_budget() -> None:
    """A bug at every first step ends the run under it, too."""
    restarts = _restarts(Clock(), on_failure="drop", max_restarts=2)
    for _ in range(2):
        restarts.failed(0, _ERROR)
    with pytest.raises(EnvFailed, match=naming("2 200 env.max_restarts")):
        restarts.failed(0, _ERROR)


def test_seeds_of_restarts_differ_and_depend_on_the_first_seed_alone() -> None:
    """They are those of training: from 1e8 up, below 2**31."""

    def drawn(seed: int) -> list[int]:
        restarts = _restarts(Clock(), units=2, max_restarts=9)
        restarts.begin(seed)
        seeds = []
        for unit in (0, 1, 0, 1):
            restarts.failed(unit, _ERROR)
            seeds.append(restarts.next_seed(unit))
        return seeds

    assert drawn(3) == drawn(3)
    assert len({*drawn(3), *drawn(4)}) == 8
    assert all(100_000_000 <= seed < 2**31 for seed in drawn(3))


def test_failures_are_counted_by_kind() -> None:
    """Every kind there is, and no other."""
    before = failure_counts()
    for kind in KINDS:
        count_failure(kind)
    assert failure_counts() == {kind: before.get(kind, 0) + 1 for kind in KINDS}
    with pytest.raises(KeyError):
        count_failure("vanished")


def test_isolated_environment_plays_as_it_would_in_this_process() -> None:
    """Same seed, same actions: the same observations, rewards and ends; episodes are told; the process ends."""
    settings = EnvSettings("CartPole-v1", isolate=True)
    actions = np.random.default_rng(0).integers(0, 2, (60, 2))
    apart = make_surviving(settings, 2, waits=False, stop=threading.Event())
    plain = make_env(settings, 2, training=True)
    with closing(apart), closing(plain):
        assert apart.spec == plain.spec
        np.testing.assert_array_equal(apart.reset(100_000_000), plain.reset(100_000_000))
        for action in actions:
            found, expected = apart.step(action), plain.step(action)
            for name in ("observation", "reward", "terminated", "truncated", "is_first", "is_reset_step"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
            assert found.episodes == expected.episodes


def test_each_environment_is_made_by_a_call_that_can_be_timed() -> None:
    """At first, and when it has failed; a batch that its own code steps is made by one, which is told its size."""
    made = list[int]()

    def timed(make: Callable[[], Any], envs: int = 1, /) -> Any:  # noqa: ANN401
        made.append(envs)
        return make()

    settings = EnvSettings("tests.support.envs:failing", {"step": 1})
    with closing(make_surviving(settings, 2, waits=True, stop=threading.Event(), timed=timed)) as env:
        assert len(made) == 2
        env.reset(1)
        env.step(np.zeros(2, np.int64))
        assert len(made) == 4
    settings = EnvSettings(vector="tests.support.faulty_envs:NumPyScalars")
    make_surviving(settings, 2, waits=True, stop=threading.Event(), timed=timed).close()
    assert len(made) == 5
    assert made == [1, 1, 1, 1, 2]


def test_isolated_batch_has_the_time_of_each_environment_to_be_made() -> None:
    """A batch of eight has eight times that of a single one."""
    settings = EnvSettings(vector="tests.support.faulty_envs:slow_vector", isolate=True, reset_timeout_s=1.0)
    make_surviving(settings, 8, waits=False, stop=threading.Event()).close()


def test_imports_of_a_process_have_the_longer_of_two_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a reset can be longer if it is set, or off as that of a step is; the message names both."""
    monkeypatch.setattr(isolated, "_IMPORT_S", 0.01)
    monkeypatch.setattr(isolated, "_POLL_S", 0.001)
    settings = EnvSettings("CartPole-v1", isolate=True)
    for limits in ({}, {"step_timeout_s": 0.01}, {"reset_timeout_s": 0.001}):
        with pytest.raises(EnvFailed, match=naming("its imports", "(0.01 s, or env.reset_timeout_s if longer)")):
            make_isolated(replace(settings, **limits))  # type: ignore[arg-type]
    for limits in ({"reset_timeout_s": 60.0}, {"step_timeout_s": 0.0}):
        make_isolated(replace(settings, **limits)).close()  # type: ignore[arg-type]


def test_isolated_batch_may_hold_scalars_of_numpy() -> None:
    """In its spec and its summaries of episodes, which are sent as text."""
    settings = EnvSettings(vector="tests.support.faulty_envs:NumPyScalars", isolate=True)
    with closing(make_surviving(settings, 2, waits=False, stop=threading.Event())) as env:
        env.reset(0)
        steps = [env.step(np.zeros(2, np.int64)) for _ in range(5)]
        assert env.spec.num_actions == 2
    assert steps[-1].episodes == tuple(EpisodeSummary(index, 15.0, 5, True) for index in range(2))


def test_isolated_evaluation_environment_is_made_again_by_its_next_reset() -> None:
    """A step in which it dies raises its kind and how it ended; nothing of its episode is left."""
    settings = EnvSettings("tests.support.faulty_envs:faulty", {"how": "crash", "every": 3}, isolate=True)
    with closing(make_isolated(settings)) as env:
        for _ in range(2):
            env.reset(1)
            env.step(_ACTION)
            env.step(_ACTION)
            with pytest.raises(EnvFailed, match=r"ended by signal 11 .*, after \d steps") as raised:
                env.step(_ACTION)
            assert raised.value.kind == "died"


@pytest.mark.parametrize("method", ["reset", "close"])
def test_isolated_environments_are_reset_and_closed_at_the_same_time(method: str, tmp_path: Path) -> None:
    """The last one begins before the first has ended."""
    kwargs = {"folder": str(tmp_path), "method": method}
    settings = EnvSettings("tests.support.faulty_envs:SlowEnv", kwargs, isolate=True)
    with closing(make_surviving(settings, 3, waits=False, stop=threading.Event())) as env:
        np.testing.assert_array_equal(env.reset(0), [[0, 0]] * 3)
    begun, ended = (
        [float(file.read_text()) for file in tmp_path.glob(f"*.{what}") if file.read_text()]
        for what in ("begun", "ended")
    )
    assert len(begun) == 3
    assert not ended or max(begun) < min(ended)


@pytest.mark.parametrize("error", [SystemExit(), AssertionError()])
def test_exception_without_a_text_is_said_to_have_none(error: BaseException) -> None:
    """`assert x` and `sys.exit()` in a step: the reason ended in a colon."""
    assert str(as_failure(error)) == f"raised {type(error).__name__} without a message"
