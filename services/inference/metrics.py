"""The inference service's metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Summary

from tidemill.curves import EPISODE_RETURN, SideCurves

_RECENT_EPISODES = 100
_EVALUATION_RETURN = "simulator/evaluation_return"
_PREFIX = "tidemill_inference"
_SIMULATORS = "tidemill_simulator"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """Metrics for Prometheus."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register every metric, once in a process."""

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{_PREFIX}_{name}", text, buckets=buckets, registry=registry)

        self.actors = Gauge(f"{_PREFIX}_actors", "Actors connected.", registry=registry)
        self.params_version = Gauge(
            f"{_PREFIX}_params_version", "Version of the parameters; 0: none yet.", registry=registry
        )
        self.env_steps = Counter(f"{_PREFIX}_env_steps_total", "Environment steps answered.", registry=registry)
        self.batches = Counter(
            f"{_PREFIX}_batches_total", "Forward passes, by what started the batch.", ("cause",), registry=registry
        )
        self.batch_rows = histogram("batch_rows", "Environments in one forward pass.", _ROWS)
        self.wait_seconds = histogram("wait_seconds", "Time from a step's arrival to its forward pass.", _SECONDS)
        self.forward_seconds = histogram("forward_seconds", "Time of a forward pass, to the host and back.", _SECONDS)


class SimulatorMetrics:
    """What Prometheus scrapes of the programs that play as clients."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register every metric, once in a process."""

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"{_SIMULATORS}_{name}_total", text, labels, registry=registry)

        def summary(name: str, text: str) -> Summary:
            return Summary(f"{_SIMULATORS}_{name}", text, registry=registry)

        self.simulators = Gauge("tidemill_simulators", "Simulators with a slot.", registry=registry)
        self.refused = counter(
            "refused", "Simulators that got no slot, by the setting of `inference` that is the limit.", ("setting",)
        )
        self.steps = counter("steps", "Steps answered.")
        self.blocked_seconds = counter("blocked_seconds", "Time that steps waited to be stored.")
        self.episodes = counter(
            "episodes",
            "Episodes by how they ended: terminated, truncated, abandoned by their client, or reported (an evaluation "
            "in which the client chose actions).",
            ("end",),
        )
        self.episode_return = summary("episode_return", "Return of an episode with exploration.")
        self.evaluation_return = summary("evaluation_return", "Return of an evaluation episode.")

    def count_episode(self, episode_return: float | None, end: str, *, evaluate: bool) -> None:
        """Count an episode that ended, and its return unless that is None: not known, or not the policy's."""
        self.episodes.labels(end).inc()
        if episode_return is not None:
            (self.evaluation_return if evaluate else self.episode_return).observe(episode_return)


class SimulatorCurves:
    """Points in TensorBoard's run of the service's name: mean returns of the newest episodes, at most 100 of each kind.

    Those with exploration have the name of an actor's, so that the run's training return counts them.
    """

    def __init__(
        self,
        run: Path,
        name: str,
        every_s: float,
        is_own: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet; `every_s` are the least seconds between two points, `is_own` is for `SideCurves`."""
        self._curves, self._every_s, self._clock = SideCurves(run, name, is_own), every_s, clock
        self._returns: dict[str, deque[float]] = {
            name: deque(maxlen=_RECENT_EPISODES) for name in (EPISODE_RETURN, _EVALUATION_RETURN)
        }
        self._next_s = clock() + every_s

    def count(self, episode_return: float, *, evaluate: bool) -> bool:
        """Count an episode that ended; return whether it is time for a point."""
        self._returns[_EVALUATION_RETURN if evaluate else EPISODE_RETURN].append(episode_return)
        if self._clock() < self._next_s:
            return False
        self._next_s = self._clock() + self._every_s
        return True

    def write(self, env_steps: int, learner_steps: int) -> None:
        """Write a point; the first one imports what takes a second."""
        means = {name: fmean(returns) for name, returns in self._returns.items() if returns}
        self._curves.write(means, env_steps=env_steps, learner_steps=learner_steps)

    def close(self) -> None:
        """Close the files."""
        self._curves.close()
