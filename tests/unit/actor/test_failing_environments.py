"""What an actor stores of environments that fail: every transition that did happen, and none that did not."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from tests.support.faulty_envs import FATAL, KIND_OF, SometimesEnv
from tests.support.naming import naming
from tests.support.waiting import crowd, wait_until
from tidemill.config.sections import ActorConfig
from tidemill.envs import failures, make
from tidemill.envs.failures import Restarts, failure_counts
from tidemill.envs.isolated import WorkerPart
from tidemill.envs.make import make_surviving
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, EnvFailed
from tidemill.rl.agents.build import build_policy
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.actor import __main__ as actor
from tidemill.services.actor.acting.loop import ActingLoop
from tidemill.services.actor.acting.metrics import ActorCurves, ActorMetrics
from tidemill.services.launcher.view.curves import env_failures, last_env_failure

_ENVS = 3
_MODULE = "tests.support.faulty_envs"


class _Params:
    """Parameters that never change."""

    version = env_steps = learner_steps = 0

    def refresh(self) -> None:
        """Do nothing."""


class _Streams:
    """Stands in for a writer: keeps the rows of each stream, and stops the loop once each has so many."""

    env_steps = 0
    starts_window = False

    def __init__(self, count: int) -> None:
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(_ENVS)]
        self.stop, self._count = threading.Event(), count

    def append(
        self,
        row: Mapping[str, NDArray[Any]],
        *,
        env: int | None = None,
        is_decision: Any,  # noqa: ANN401 - of one or of all
        beside: Mapping[str, Any],
        **_: object,
    ) -> None:
        """Keep a row of one stream, or of all."""
        for number in range(_ENVS) if env is None else (env,):
            own = {**row, "is_reset_step": beside["is_reset_step"], "is_decision": is_decision}
            self.rows[number].append({name: v[number] if env is None else v for name, v in own.items()})
        if min(map(len, self.rows)) >= self._count:
            self.stop.set()

    def push(self) -> None:
        """Do nothing."""


def _played(
    settings: EnvSettings, count: int, *, on_policy: bool = False, metrics: ActorMetrics | None = None
) -> list[list[dict[str, Any]]]:
    """Return the rows of each stream after so many steps."""
    streams, params = _Streams(count), _Params()
    with closing(make_surviving(settings, _ENVS, waits=on_policy, stop=streams.stop)) as env:
        config = DQNConfig(network="mlp", hidden_sizes=(8,), exploration="schedule")
        stand_ins: tuple[Any, Any] = params, streams
        policy = build_policy(config, env.spec)
        loop = ActingLoop(env, policy, *stand_ins, metrics or ActorMetrics(1e9), lambda: None, holds=not on_policy)
        loop.run(0, streams.stop)
    return streams.rows


def _check(rows: list[dict[str, Any]]) -> int:
    """Check the promises of a stream of `CountingEnv`; return how many of its episodes were cut."""
    cuts = 0
    for row, following in itertools.pairwise(rows):
        (episode, step), (next_episode, next_step) = row["observation"], following["observation"]
        if row["is_reset_step"]:
            assert not any(row[name] for name in ("terminated", "truncated", "is_first", "is_decision"))
            assert (row["reward"], following["is_first"], next_step) == (0, True, 0)
        else:
            assert (next_step, row["reward"]) == (step + 1, step + 1), "a transition that did not happen"
            assert next_episode == episode
            assert row["terminated"] == (next_step == 5)
            assert following["is_reset_step"] == (row["terminated"] or row["truncated"])
            cuts += bool(row["truncated"])
        assert np.isfinite(row["observation"]).all()
        assert row["is_first"] == (step == 0)
    return cuts


@pytest.mark.parametrize("how", KIND_OF)
def test_failure_in_this_process_cuts_one_episode(how: str) -> None:
    """The episode under way is truncated at the last step that is known; kinds are counted."""
    before = failure_counts().get(KIND_OF[how], 0)
    settings = EnvSettings(f"{_MODULE}:faulty", {"how": how}, max_restarts=100, restart_backoff_s=0.0)
    streams = _played(settings, 200)
    cuts = [_check(rows) for rows in streams]
    assert sum(cuts) > 20 or how.endswith("_reset")
    assert failure_counts()[KIND_OF[how]] - before > 20


@pytest.mark.parametrize("how", ["raise", "nan_reset", *FATAL])
def test_failure_of_an_isolated_environment_cuts_one_episode(how: str) -> None:
    """A process that raises, hangs, crashes or leaks is replaced, and the streams are as true as without."""
    kind = (KIND_OF | FATAL)[how]
    before = failure_counts().get(kind, 0)
    settings = EnvSettings(
        f"{_MODULE}:faulty",
        {"how": how, "every": {"leak": 2, "nan_reset": 100, "hang_reset": 100}.get(how, 23)},
        isolate=True,
        step_timeout_s=20.0 if how == "hang_reset" else 1.0,
        reset_timeout_s=2.0 * crowd() if how == "hang_reset" else 20.0,  # its constructor is to be in time, too
        max_memory_mib=256 if how == "leak" else 0,
        max_restarts=100,
        restart_backoff_s=0.0,
    )
    with capture_logs() as logs:
        streams = _played(settings, 30 if how == "hang_reset" else 60)
    for rows in streams:
        _check(rows)
    assert failure_counts()[kind] > before
    method = "reset" if how == "hang_reset" else "step"
    assert all(f"returned from {method} for" in line["reason"] for line in logs if line.get("kind") == "hung")


@pytest.mark.parametrize(
    "how, isolate", [("raise", False), ("nan", False), ("raise_reset", False), ("tuple", True), ("raise_reset", True)]
)
def test_policy_drop_resets_the_environment_and_keeps_it(how: str, isolate: bool) -> None:
    """Its count of episodes continues; it begins again in one that is made again."""
    before = failure_counts().get(KIND_OF[how], 0)
    kwargs = {"how": how, "every": 100 if how == "raise_reset" else 17}
    settings = EnvSettings(f"{_MODULE}:faulty", kwargs, isolate=isolate, on_failure="drop", restart_backoff_s=0.0)
    streams = _played(settings, 60)
    for rows in streams:
        cuts, episodes = _check(rows), [row["observation"][0] for row in rows]
        assert cuts >= 2 or how == "raise_reset"
        assert episodes == sorted(episodes)
    assert failure_counts()[KIND_OF[how]] - before >= 3


@pytest.mark.parametrize("how, isolate", [("ruin", False), ("ruin", True), ("crash", True)])
def test_policy_drop_makes_again_what_cannot_be_reset(how: str, isolate: bool) -> None:
    """An environment that raises in every reset after its first failure, and a process that is gone."""
    kwargs = {"how": how, "every": 23}
    settings = EnvSettings(f"{_MODULE}:faulty", kwargs, isolate=isolate, on_failure="drop", restart_backoff_s=0.0)
    for rows in _played(settings, 40):
        episodes = [row["observation"][0] for row in rows]
        assert _check(rows) >= 1
        assert episodes != sorted(episodes)


def test_policy_drop_keeps_a_batch() -> None:
    """All of its episodes are cut, and its object is reset."""
    settings = EnvSettings(vector=f"{_MODULE}:faulty_vector", kwargs={"every": 8}, on_failure="drop")
    for rows in _played(settings, 60):
        episodes = [row["observation"][0] for row in rows]
        assert _check(rows) > 2
        assert episodes == sorted(episodes)


def test_failure_of_a_batch_cuts_all_of_its_episodes() -> None:
    """Its environments are restarted together."""
    settings = EnvSettings(
        vector=f"{_MODULE}:faulty_vector", kwargs={"every": 8}, max_restarts=100, restart_backoff_s=0
    )
    cuts = [_check(rows) for rows in _played(settings, 120)]
    assert min(cuts) > 5


def test_batch_of_a_process_of_its_own() -> None:
    """It has one process, which is replaced when it crashes."""
    settings = EnvSettings(
        vector=f"{_MODULE}:faulty_vector", kwargs={"how": "crash", "every": 23}, isolate=True, max_restarts=100
    )
    cuts = [_check(rows) for rows in _played(settings, 60)]
    assert min(cuts) >= 1


@pytest.mark.parametrize(
    "how, isolate", [("raise", False), ("info", False), ("ragged_mask", False), ("ragged_mask", True)]
)
def test_masks_are_those_of_the_observations(how: str, isolate: bool) -> None:
    """Of an environment that is back, and of the others meanwhile."""
    settings = EnvSettings(
        f"{_MODULE}:MaskedFaultyEnv",
        action_mask="info.action_mask",
        isolate=isolate,
        max_restarts=100,
        kwargs={"how": how, "every": 23},
    )
    for rows in _played(settings, 60):
        assert _check(rows)
        assert all(row["action"] == 1 for row in rows if row["is_decision"])


def test_others_play_on_while_one_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits to be restarted writes no rows; the others' streams are far longer then.

    The time of the pauses is counted in looks at the clock, one for each step of the others.
    """
    monkeypatch.setattr(SometimesEnv, "made", 0)
    looks = itertools.count()
    monkeypatch.setattr(make, "Restarts", partial(Restarts, clock=lambda: 0.001 * next(looks)))
    settings = EnvSettings(f"{_MODULE}:SometimesEnv", max_restarts=100, restart_backoff_s=0.3)
    streams = _played(settings, 8)
    for rows in streams:
        _check(rows)
    failing, *others = map(len, streams)
    assert min(others) > 5 * failing


@pytest.mark.parametrize("isolate", [False, True])
def test_steps_are_few_while_nothing_is_up(isolate: bool) -> None:
    """Each would cost a pass through the policy's network, whose action nobody takes."""
    settings = EnvSettings(
        vector=f"{_MODULE}:faulty_vector",
        kwargs={"every": 2},
        isolate=isolate,
        max_restarts=100,
        restart_backoff_s=0.0 if isolate else 2.0,  # a process takes its time by itself
    )
    absent, action = 0, np.zeros(2, np.int64)
    with closing(make_surviving(settings, 2, waits=False, stop=threading.Event())) as env:
        env.reset(0)
        began_s, returned = time.monotonic(), 0
        while returned < 2:
            step = env.step(action)
            absent += step.is_absent is not None
            returned += bool(step.is_first.all())
    assert absent < 1 + 10 * (time.monotonic() - began_s)


def test_on_policy_streams_advance_together() -> None:
    """Each step has a row of every environment; an episode's unknown step is followed by a first one."""
    settings = EnvSettings(f"{_MODULE}:faulty", max_restarts=100, restart_backoff_s=0.0)
    streams = _played(settings, 100, on_policy=True)
    assert len({len(rows) for rows in streams}) == 1
    unknown = 0
    for rows in streams:
        for row, following in itertools.pairwise(rows):
            if not row["is_reset_step"]:
                assert following["observation"][1] == row["observation"][1] + 1 == row["reward"]
                continue
            assert following["is_first"]
            assert not any(row[name] for name in ("terminated", "truncated"))
            unknown += row["observation"][1] < 5
    assert unknown > 20


def test_environment_that_cannot_be_made_again_ends_the_actor(tmp_path: Any) -> None:  # noqa: ANN401
    """The error is that of the constructor, and final."""
    settings = EnvSettings(f"{_MODULE}:UnmakeableEnv", {"folder": str(tmp_path), "most": _ENVS}, restart_backoff_s=0.0)
    with pytest.raises(EnvFailed, match=naming("RuntimeError: no licence left 7")) as raised:
        _played(settings, 10)
    assert raised.value.is_final


def test_actor_that_cannot_step_tells_of_it_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may never count a step; the launcher reads its last point."""
    monkeypatch.setattr(failures, "_counts", dict.fromkeys(failures.KINDS, 0))
    curves = ActorCurves(tmp_path, "actor-0", lambda: 0)
    settings = EnvSettings(f"{_MODULE}:UnmakeableEnv", {"folder": str(tmp_path), "most": _ENVS}, restart_backoff_s=0.0)
    with closing(curves), pytest.raises(EnvFailed):
        _played(settings, 10, metrics=ActorMetrics(1e9, curves))
    assert env_failures(tmp_path)["actor-0"]["raised"] >= 1
    assert "no licence left" in last_env_failure(tmp_path)


def test_close_that_fails_as_well_does_not_hide_the_failure() -> None:
    """The run would be restarted instead of ended."""
    settings = EnvSettings(vector=f"{_MODULE}:BrokenCloseEnv", on_failure="stop")
    with pytest.raises(EnvFailed, match=naming("the simulator broke")) as raised:
        _played(settings, 10)
    assert raised.value.is_final


@pytest.mark.timeout(120)
@pytest.mark.parametrize("which", [0, -1])
def test_batch_whose_process_is_gone_is_made_again(which: int) -> None:
    """Gymnasium's own `close` waits for answers of the others that were read before, or raises."""
    children = multiprocessing.active_children()
    settings = EnvSettings(
        vector=f"{_MODULE}:faulty_processes", kwargs={"every": 8, "which": which}, restart_backoff_s=0.0
    )
    for rows in _played(settings, 20):
        assert _check(rows) >= 1
    assert multiprocessing.active_children() == children


@pytest.mark.parametrize("on_failure", ["restart", "stop"])
def test_stop_ends_the_wait_for_an_isolated_environment_that_hangs(on_failure: Literal["restart", "stop"]) -> None:
    """With a limit of ten minutes a step that hangs is left after two seconds once the actor is to stop.

    The environment has not failed: it may have needed a little longer.
    """
    settings = EnvSettings(
        f"{_MODULE}:faulty",
        {"how": "hang", "every": 3},
        isolate=True,
        step_timeout_s=600.0,
        on_failure=on_failure,
    )
    stop, before = threading.Event(), failure_counts()
    with closing(make_surviving(settings, 1, waits=False, stop=stop)) as env:
        env.reset(0)
        action = np.zeros(1, np.int64)
        for _ in range(2):
            env.step(action)
        threading.Timer(0.2, stop.set).start()
        began_s = time.monotonic()
        env.step(action)
    assert time.monotonic() - began_s < 60
    assert failure_counts() == before


def test_stop_while_an_environment_is_made_ends_the_actor_in_order() -> None:
    """Its constructor is left after two seconds, and has not failed."""
    env = EnvSettings(f"{_MODULE}:UnendingEnv", {"method": "constructor"}, isolate=True, num_envs=1)
    stop, before = threading.Event(), failure_counts()
    stop.set()
    server: Any = SimpleNamespace(health=None)
    actor.act(ActorConfig(env=env), server, stop)
    assert failure_counts() == before


def test_first_reset_is_not_repeated_after_a_stop() -> None:
    """It is left after two seconds, and has not failed."""
    settings = EnvSettings(f"{_MODULE}:UnendingEnv", {"method": "reset"}, isolate=True)
    stop, before = threading.Event(), failure_counts()
    with closing(make_surviving(settings, 1, waits=False, stop=stop)) as env:
        stop.set()
        with pytest.raises(EnvFailed):
            env.reset(0)
    assert failure_counts() == before


def test_isolated_environment_that_stood_still_with_its_actor_has_its_time_again() -> None:
    """In a paused container the limit passes by the clock; the step is completed all the same."""
    settings = EnvSettings(f"{_MODULE}:faulty", {"every": 1000}, isolate=True, step_timeout_s=4.0)
    with closing(WorkerPart(settings, 1, threading.Event(), training=True)) as part:
        part.reset(0)
        group = part.pid
        assert group is not None
        os.killpg(group, signal.SIGSTOP)
        part.begin(np.zeros(1, np.int64))
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > settings.step_timeout_s, "a pause beyond the limit")
        threading.Timer(0.5, os.killpg, (group, signal.SIGCONT)).start()
        assert part.finish()[1] == []


def test_first_resets_that_share_a_core_have_the_time_of_all(tmp_path: Path) -> None:
    """Four resets of a second each, begun together, take longer than the limit of one and fail none."""
    kwargs = {"path": str(tmp_path / "lock")}
    settings = EnvSettings(f"{_MODULE}:QueuingEnv", kwargs, isolate=True, step_timeout_s=3.0, on_failure="stop")
    with closing(make_surviving(settings, 4, waits=False, stop=threading.Event())) as env:
        began_s = time.monotonic()
        env.reset(0)
        assert time.monotonic() - began_s > settings.step_timeout_s


def test_first_reset_that_hangs_has_the_time_of_all_that_were_begun_with_it() -> None:
    """The next attempt, which is alone, has the time of one. The message names the limit of a reset."""
    limit_s = 2.0 * crowd()  # the constructor is to be in time
    kwargs = {"method": "reset"}
    settings = EnvSettings(f"{_MODULE}:UnendingEnv", kwargs, isolate=True, step_timeout_s=2.0, reset_timeout_s=limit_s)
    with closing(WorkerPart(settings, 1, threading.Event(), training=True)) as part:
        assert part.spec.num_actions
        part.begin_reset(0, 2)
        for limit in (" for each of 2 environments", ""):
            with pytest.raises(EnvFailed, match=naming("from reset for", f"(env.reset_timeout_s{limit})")):
                part.reset(0)


def test_limit_of_memory_that_a_batch_exceeds_from_its_start_is_refused() -> None:
    """Each process would be replaced after its first step, until the restarts are used up."""
    settings = EnvSettings(vector=f"{_MODULE}:faulty_vector", isolate=True, max_memory_mib=1)
    with (
        closing(make_surviving(settings, 2, waits=False, stop=threading.Event())) as env,
        pytest.raises(ConfigError, match=naming("MiB before its first step", "env.max_memory_mib is 1")),
    ):
        env.reset(0)


def test_batch_of_a_process_of_its_own_is_replaced_at_its_limit_of_memory() -> None:
    """Its episodes hardly ever end in the same step, and it is replaced before they do."""
    settings = EnvSettings(
        vector=f"{_MODULE}:faulty_vector",
        kwargs={"how": "leak", "every": 2, "length": 100},
        isolate=True,
        max_memory_mib=256,
        max_restarts=100,
    )
    with capture_logs() as logs:
        _played(settings, 30)
    reasons = [line["reason"] for line in logs if line.get("kind") == "memory"]
    taken = [int(match[1]) for reason in reasons if (match := re.search(r"took (\d+) MiB", reason))]
    assert taken
    assert max(taken) < 2 * 256
