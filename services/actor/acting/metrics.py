"""Counters of an actor, for Prometheus and for its log."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import structlog
from prometheus_client import REGISTRY, Counter, Gauge, Summary
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidemill.config.sections import ActorConfig
from tidemill.curves import ENV_FAILURES, LAST_ENV_FAILURE, SideCurves
from tidemill.envs.failures import failure_counts, last_failure
from tidemill.envs.interface import VectorStep
from tidemill.params.stored import OwnFolder
from tidemill.params.version import Params
from tidemill.replay.writing.writer import ReplayWriter

EXPECTED = Gauge("tidemill_actor_expected", "Actors that this one shares the exploration ladder with, itself included.")
_STEPS = Counter("tidemill_actor_env_steps_total", "Decisions of the agent, all environments together.")
_EPISODES = Counter("tidemill_actor_episodes_total", "Real episodes that ended.")
_RETURN = Summary("tidemill_actor_episode_return", "Return of an episode as the environment gave it.")
_LENGTH = Summary("tidemill_actor_episode_steps", "Length of an episode in decisions.")
_VERSION = Gauge("tidemill_actor_params_version", "Version of the parameters it acts with; 0: none yet.")
_SECONDS = Counter("tidemill_actor_seconds_total", "Time spent, by what it was spent on.", ("part",))
WAIT_SECONDS = _SECONDS.labels("wait")
"""Time until the next steps were due, on-policy and in lock-step. Other runs wait in `write`."""
_UNACKNOWLEDGED = Gauge("tidemill_actor_unacknowledged_chunks", "Chunks queued or sent and not yet acknowledged.")

_log = structlog.get_logger()

_RECENT_EPISODES = 100
_REASON_CHARACTERS = 400
_FIRST_FAILURE_S = 1.0
"""The first failure of an environment waits no longer for a line of progress: the view warns of it."""


class ActorCurves:
    """Points in TensorBoard's run of the actor's name, such as `actor/episode_return`, over all actors' decisions."""

    def __init__(
        self, run: Path, name: str, env_steps: Callable[[], int], is_own: Callable[[], bool] = lambda: True
    ) -> None:
        """Write nothing yet.

        Args:
            run: The run's folder.
            name: Of the actor.
            env_steps: Gives the decisions so far, of all actors.
            is_own: Whether the folder is that of the actor's run, as `SideCurves` takes it.
        """
        self._curves, self._env_steps = SideCurves(run, name, is_own), env_steps

    def write(self, scalars: Mapping[str, float], learner_steps: int, failure: str = "") -> None:
        """Write a point.

        Args:
            scalars: By name.
            learner_steps: Updates behind the parameters that the actor acts with.
            failure: Why an environment failed last; empty without a failure.
        """
        named = {f"actor/{name}": value for name, value in scalars.items()}
        texts = {f"actor/{LAST_ENV_FAILURE}": failure} if failure else {}
        self._curves.write(named, env_steps=self._env_steps(), learner_steps=learner_steps, texts=texts)

    def close(self) -> None:
        """Close the files."""
        self._curves.close()


def open_curves(
    config: ActorConfig,
    actor_id: str,
    env_steps: Callable[[], int],
    stack: ExitStack,
    newest: Callable[[], Params | None],
) -> ActorCurves | None:
    """Return the actor's curves; None where the run's folder cannot be written here, or no curves are wanted.

    `newest` gives the newest parameters of the run; if the folder has others, nothing is written.
    """
    if not config.learner.tensorboard_every_s or not os.access(config.run.folder, os.W_OK):
        return None
    is_own = OwnFolder(config.run.params_folder, newest)
    return stack.enter_context(closing(ActorCurves(config.run.folder, actor_id, env_steps, is_own)))


class ActorMetrics:
    """Counts steps and episodes and logs a line of progress every few seconds."""

    def __init__(
        self, log_every_s: float, curves: ActorCurves | None = None, is_past: Callable[[], bool] = lambda: False
    ) -> None:
        """Start counting now.

        Args:
            log_every_s: Seconds between two lines of progress.
            curves: Gets a point with each of them.
            is_past: Whether a step repeats one that was counted by an earlier process; such steps are left out.
        """
        self._curves, self._is_past = curves, is_past
        self._log_every_s = log_every_s
        self._returns: collections.deque[float] = collections.deque(maxlen=_RECENT_EPISODES)
        self._env_steps = self._logged_steps = self._episodes = 0
        self._logged_at = time.monotonic()
        self._logged_failures: dict[str, int] = {}
        self._parts = {name: _SECONDS.labels(name) for name in ("act", "step", "write")}

    def count(self, step: VectorStep, params_version: int, learner_steps: int = 0) -> None:
        """Count one step of every environment, acted with parameters of a version and the updates behind it."""
        _VERSION.set(params_version)
        if self._is_past():
            self._logged_at = time.monotonic()
            return
        decisions = len(step.is_reset_step) - int(np.count_nonzero(step.is_reset_step))
        self._env_steps += decisions
        _STEPS.inc(decisions)
        for episode in step.episodes:
            self._episodes += 1
            self._returns.append(episode.episode_return)
            _EPISODES.inc()
            _RETURN.observe(episode.episode_return)
            _LENGTH.observe(episode.length)
        failures, elapsed_s = failure_counts(), time.monotonic() - self._logged_at
        is_first_failure = bool(failures) and not self._logged_failures
        if elapsed_s >= (min(_FIRST_FAILURE_S, self._log_every_s) if is_first_failure else self._log_every_s):
            self._log_progress(failures, params_version, learner_steps)

    def finish(self, params_version: int, learner_steps: int = 0) -> None:
        """Log a last line with what has happened since the one before; of less than a second only new failures."""
        failures, elapsed_s = failure_counts(), time.monotonic() - self._logged_at
        if not self._is_past() and (elapsed_s >= _FIRST_FAILURE_S or failures != self._logged_failures):
            self._log_progress(failures, params_version, learner_steps)

    def time(self, **seconds: float) -> None:
        """Add the time one step spent on `act`, `step` and `write`."""
        for part, value in seconds.items():
            self._parts[part].inc(value)

    def _log_progress(self, failures: dict[str, int], params_version: int, learner_steps: int) -> None:
        now = time.monotonic()
        steps_per_s = (self._env_steps - self._logged_steps) / max(now - self._logged_at, 1e-9)
        mean_return = float(np.mean(self._returns)) if self._returns else None
        _log.info(
            "acting",
            env_steps=self._env_steps,
            env_steps_per_s=round(steps_per_s),
            episodes=self._episodes,
            mean_return=round(mean_return, 1) if mean_return is not None else None,
            params_version=params_version,
        )
        if self._curves is not None:
            scalars = {"env_steps_per_s": steps_per_s, "params_version": params_version}
            mean = {"episode_return": mean_return} if mean_return is not None else {}
            failed = {f"{ENV_FAILURES}{kind}": float(count) for kind, count in failures.items()}
            self._curves.write(scalars | mean | failed, learner_steps, last_failure()[:_REASON_CHARACTERS])
        self._logged_at, self._logged_steps, self._logged_failures = now, self._env_steps, failures


class WriterCollector:
    """A Prometheus collector over what a writer counts itself. It only reads, so any thread may collect."""

    def __init__(
        self, writer: ReplayWriter, waited_s: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Collect from a writer; `waited_s` is the time that the actor waited until its next steps were due."""
        self._writer, self._waited_s, self._clock = writer, waited_s, clock
        self._seen_at, self._seen_blocked_s = clock(), 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield every counter."""
        counted = self._writer
        blocked_s = counted.blocked_s + self._waited_s()
        about = "Time spent waiting for acknowledgements, or for the parameters that the next steps need."
        yield _counter("blocked_seconds", about, blocked_s)
        about = "Share of the time since the last collection that the actor waited for acknowledgements or parameters."
        yield GaugeMetricFamily("tidemill_actor_blocked_ratio", about, value=self._blocked_ratio(blocked_s))
        yield _counter(
            "stream_restarts",
            "How often this actor's streams restarted: they were lost, or it moved.",
            counted.restarts,
        )
        yield _counter("dropped_chunks", "Chunks dropped because the streams were lost.", counted.dropped_chunks)

    def _blocked_ratio(self, blocked_s: float) -> float:
        now = self._clock()
        elapsed_s, waited_s = now - self._seen_at, blocked_s - self._seen_blocked_s
        self._seen_at, self._seen_blocked_s = now, blocked_s
        return min(waited_s / elapsed_s, 1.0) if elapsed_s > 0 else 0.0


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"tidemill_actor_{name}", about, value=value)


def watch_writer(writer: ReplayWriter, waited_s: Callable[[], float]) -> None:
    """Let Prometheus read the state of the connection to the replay service; see `WriterCollector` for `waited_s`."""
    _UNACKNOWLEDGED.set_function(lambda: writer.unacknowledged_chunks)
    REGISTRY.register(WriterCollector(writer, waited_s))
