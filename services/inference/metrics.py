"""The inference service's metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Summary

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
        self.params_version = Gauge(f"{_PREFIX}_params_version", "Version of the parameters.", registry=registry)
        self.env_steps = Counter(f"{_PREFIX}_env_steps_total", "Environment steps answered.", registry=registry)
        self.batches = Counter(
            f"{_PREFIX}_batches_total", "Forward passes, by why the batch went.", ("cause",), registry=registry
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
        self.steps = counter("steps", "Steps answered.")
        self.blocked_seconds = counter("blocked_seconds", "Time that steps waited to be stored.")
        self.episodes = counter(
            "episodes", "Episodes by how they ended: terminated, truncated, or abandoned by their client.", ("end",)
        )
        self.episode_return = summary("episode_return", "Return of an episode with exploration.")
        self.evaluation_return = summary("evaluation_return", "Return of an evaluation episode.")

    def count_episode(self, episode_return: float, end: str, *, evaluate: bool) -> None:
        """Count an episode that ended; the return of one that was abandoned is not known."""
        self.episodes.labels(end).inc()
        if end != "abandoned":
            (self.evaluation_return if evaluate else self.episode_return).observe(episode_return)
