"""The acting loop: newest parameters, one output for all environments, one step, one row per stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill.acting.params import load_params
from tidemill.envs.interface import VectorEnv, VectorStep, action_mask_of
from tidemill.errors import DataLoss, Unavailable
from tidemill.params.version import Params
from tidemill.params.watcher import ParamsWatcher
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.rl.agents.interface import Policy
from tidemill.rl.policy_io import PolicyInputBuilder, check_extras, kept, step_columns
from tidemill.services.actor.acting.metrics import WAIT_SECONDS, ActorMetrics
from tidemill.types import Signature

_log = structlog.get_logger()

_STOP_CHECK_S = 0.5


class ActingStopped(Exception):
    """The actor was asked to stop while its policy waited."""


class ActingParams(Protocol):
    """Version and counters of the parameters that the loop acts with."""

    @property
    def version(self) -> int:
        """Their version."""

    @property
    def env_steps(self) -> int:
        """Agent decisions of the whole cluster when they were published."""

    @property
    def learner_steps(self) -> int:
        """Updates behind them."""

    def refresh(self) -> None:
        """Take the newest ones; never waits."""


@dataclass
class PolicyParams:
    """Keeps a policy's parameters up to date with the watcher."""

    watcher: ParamsWatcher
    policy: Policy
    version: int = 0
    env_steps: int = 0
    """Agent decisions of the whole cluster when they were published; a replay shard counts only its own actors."""
    learner_steps: int = 0
    """Updates behind them."""
    fencing_token: int = 0
    """Of the learner process that published them."""
    waited_s: float = 0.0
    """Time that the actor could not act, as its next steps were not due."""
    _loaded: Params | None = None

    def wait(self, stop: threading.Event) -> bool:
        """Wait for the first parameters; return False if `stop` came before them."""
        while not stop.is_set():
            if self.watcher.wait(_STOP_CHECK_S) is not None:
                self.refresh()
                return True
        return False

    def refresh(self) -> None:
        """Load the newest parameters if they are newer than the policy's; never waits.

        Raises:
            FatalError: They are those of another network.
        """
        params = self.watcher.newest()
        if params is not None and params is not self._loaded:
            metadata = params.version.metadata
            load_params(self.policy, params.blob, params.number, metadata.algorithm)
            self._loaded = params
            self.version, self.env_steps = params.version.version, metadata.env_steps
            self.learner_steps, self.fencing_token = metadata.learner_steps, params.version.fencing_token

    @contextmanager
    def counted_wait(self) -> Iterator[None]:
        """Count the time until the end of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.waited_s += seconds
            WAIT_SECONDS.inc(seconds)


class VersionPacer:
    """Makes an actor wait before it starts an item that would be too old when it is trained on.

    All actors start as many items with each version as the learner uses up before the next, so that none waits for
    ever; a lead lets them start those of so many versions beforehand. An item is then used at most `actors * lead`
    versions after the one that acted it (docs/adr/0040-on-policy-pacing.md has the proof).
    """

    def __init__(self, windows_per_version: int, publish_every: int, lead: int) -> None:
        """Wait for nothing yet.

        Args:
            windows_per_version: Windows of each environment that the learner uses up from one version to the next.
            publish_every: Updates from one version to the next.
            lead: Versions whose windows may be started before it is their turn.
        """
        self._windows, self._publish_every, self._lead = windows_per_version, publish_every, lead
        self._fencing_token: int | None = None
        self._restarts = 0
        self._base = self._newest = self._started = 0
        """Updates behind the version that counting started with and behind the newest, and the windows since then."""

    def wait(self, params: PolicyParams, writer: ReplayWriter, stop: threading.Event) -> bool:
        """Load newer parameters, and wait for some if needed; return False if `stop` came before a start is due."""
        params.refresh()
        while not self._may_start(params, writer):
            if stop.is_set():
                return False
            with params.counted_wait():
                params.watcher.wait(_STOP_CHECK_S, newer_than=params.version)
            params.refresh()
            with suppress(DataLoss, Unavailable):
                writer.flush(0.0)  # leaves a dead shard
        self.started()
        return True

    def _may_start(self, params: PolicyParams, writer: ReplayWriter) -> bool:
        if writer.restarts != self._restarts:  # the learner may never get the items that these versions needed
            self._restarts, self._fencing_token = writer.restarts, None
        return self.may_start(params.fencing_token, params.learner_steps)

    def started(self) -> None:
        """Count a window that starts now."""
        self._started += 1

    def may_start(self, fencing_token: int, learner_steps: int) -> bool:
        """True if another window may start with the parameters of this learner process after so many updates."""
        # a restarted learner has lost at least the batch in training; that of another run may have the same token
        if fencing_token != self._fencing_token or learner_steps < self._newest:
            self._fencing_token, self._base, self._started = fencing_token, learner_steps, 0
        self._newest = learner_steps
        versions = learner_steps // self._publish_every - self._base // self._publish_every
        return self._started < self._windows * (versions + 1 + self._lead)


class _Row(NamedTuple):
    """What a step of N environments writes; see `ReplayWriter.append`."""

    columns: dict[str, NDArray[Any]]
    params_version: int
    is_decision: NDArray[np.bool_]
    beside: dict[str, NDArray[Any]]
    payload: NDArray[np.float32] | None
    is_there: NDArray[np.bool_] | None
    """Environments that have a row, [N]; None: all."""


class ActingLoop:
    """Steps the environments until it is stopped."""

    def __init__(  # noqa: PLR0913 - each is one part
        self,
        env: VectorEnv,
        policy: Policy,
        params: ActingParams,
        writer: ReplayWriter,
        metrics: ActorMetrics,
        throttle: Callable[[], None],
        extra_columns: Signature = (),
        pacer: Callable[[threading.Event], bool] | None = None,
        *,
        holds: bool = False,
    ) -> None:
        """Put the parts together.

        Args:
            env: The environments.
            policy: Chooses the actions.
            params: Keeps the policy fresh.
            writer: Takes the rows.
            metrics: Counts them.
            throttle: Called once per step; sleeps if the actor must not run at full speed.
            extra_columns: Columns that the policy itself fills.
            pacer: Waits until a window may start, and loads parameters only then; False if it was stopped. None: never.
            holds: Whether a row is written one step later, so that one whose environment fails in the next step can be
                marked as truncated; not with a pacer.
        """
        self._env, self._policy, self._params = env, policy, params
        self._writer, self._metrics, self._throttle = writer, metrics, throttle
        self._extra_columns, self._pacer, self._holds = extra_columns, pacer, holds
        self._held: _Row | None = None
        self._input_builder = PolicyInputBuilder(env.num_envs, env.spec, policy.recurrent_state_size)

    def run(self, seed: int, stop: threading.Event) -> None:
        """Act until `stop` is set; the environments start from `seed`."""
        try:
            self._run(seed, stop)
            self._release()
        except ActingStopped:
            return
        except Unavailable:
            if not stop.is_set():
                raise
        finally:
            self._metrics.finish(self._params.version, self._params.learner_steps)

    def _run(self, seed: int, stop: threading.Event) -> None:
        observation, last_reward = self._env.reset(seed), None
        is_first = np.ones(self._env.num_envs, dtype=np.bool_)
        while not stop.is_set():
            if self._pacer is None:
                self._params.refresh()
            elif self._writer.starts_window and not self._pacer(stop):
                return
            result = self._step(observation, is_first, last_reward)
            observation, is_first, last_reward = result.observation, result.is_first, result.reward
            self._throttle()

    def _step(
        self,
        observation: NDArray[np.generic],
        is_first: NDArray[np.bool_],
        last_reward: NDArray[np.float32] | None,
    ) -> VectorStep:
        started = time.perf_counter()
        mask = action_mask_of(self._env)
        policy_input = self._input_builder.build(observation, is_first, last_reward, mask)
        output = self._policy.act(policy_input, max(self._writer.env_steps, self._params.env_steps))
        if self._env.spec.frame_stack > 1:
            output = kept(output, policy_input.observation)
        self._input_builder.record(output)
        decided = time.perf_counter()
        result = self._env.step(output.action.copy())  # an environment of the user's may write to it
        stepped = time.perf_counter()
        check_extras(output.extras, self._extra_columns, self._env.num_envs)
        columns = step_columns(
            output,
            observation,
            is_first,
            mask,
            self._env.spec,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
        )
        row = _Row(
            columns,
            self._params.version,
            ~result.is_reset_step,
            {**output.priority_inputs, "is_reset_step": result.is_reset_step},
            policy_input.recurrent_state if self._policy.recurrent_state_size else None,
            None if result.is_absent is None else ~result.is_absent,
        )
        if self._holds:
            row = self._cut(row, result.is_cut)
            self._release()
            self._held = row
        else:
            self._append(row)
        self._metrics.count(result, self._params.version, self._params.learner_steps)
        self._metrics.time(act=decided - started, step=stepped - decided, write=time.perf_counter() - stepped)
        return result

    def _cut(self, row: _Row, is_cut: NDArray[np.bool_] | None) -> _Row:
        """Mark the row before as truncated where an environment failed in this one; leave out an episode's first."""
        if is_cut is None or not is_cut.any():
            return row
        is_first = row.columns["is_first"]
        if self._held is not None:
            self._held.columns["truncated"][is_cut & ~is_first] = True
        is_there = ~(is_cut & is_first)
        return row._replace(is_there=is_there if row.is_there is None else row.is_there & is_there)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._append(held)

    def _append(self, row: _Row) -> None:
        """Write a row of every environment, or of those that are there."""
        version = row.params_version
        if row.is_there is None or row.is_there.all():
            self._writer.append(
                row.columns,
                params_version=version,
                is_decision=row.is_decision,
                beside=row.beside,
                payload=row.payload,
            )
        else:
            for env in np.flatnonzero(row.is_there).tolist():
                self._writer.append(
                    {name: column[env] for name, column in row.columns.items()},
                    env=env,
                    params_version=version,
                    is_decision=row.is_decision[env],
                    beside={name: column[env] for name, column in row.beside.items()},
                    payload=None if row.payload is None else row.payload[env],
                )
        self._writer.push()


def make_throttle(max_env_steps_per_s: float, num_envs: int, stop: threading.Event) -> Callable[[], None]:
    """Return a function that keeps a loop of `num_envs` environments at or under a rate; 0 means no limit."""
    if max_env_steps_per_s <= 0:
        return lambda: None
    period_s = num_envs / max_env_steps_per_s
    due = time.monotonic()

    def throttle() -> None:
        nonlocal due
        due = max(due + period_s, time.monotonic() - 1.0)  # no burst after a pause
        stop.wait(max(0.0, due - time.monotonic()))

    return throttle
