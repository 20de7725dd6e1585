"""What Prometheus sees of the replay shards a learner samples."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidemill.replay.sampler import ReplaySampler

_PREFIX = "tidemill_learner_shard"


class ShardCollector:
    """A Prometheus collector over the reports of a sampler. It only reads, so any thread may collect."""

    def __init__(self, sampler: ReplaySampler) -> None:
        """Collect from a sampler of several shards."""
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        """Yield each shard's liveness, items, weight, samples and fraction of them, and what became of priorities."""
        reports = self._sampler.shards()
        total = sum(report.samples for report in reports) or 1
        yield _gauge("live", "Whether the replay shard answers.", {r.name: float(r.live) for r in reports})
        yield _gauge("items", "Items in the shard's part of the table.", {r.name: float(r.items) for r in reports})
        yield _gauge("total_weight", "Sum of the shard's sampler weights.", {r.name: r.total_weight for r in reports})
        shares = {r.name: r.samples / total for r in reports}
        yield _gauge("sample_ratio", "Share of all samples so far that came from the shard.", shares)
        samples = CounterMetricFamily(f"{_PREFIX}_samples", "Items the shard has given.", labels=("shard",))
        for report in reports:
            samples.add_metric((report.name,), report.samples)
        yield samples
        dropped = "New priorities that were not delivered, because their shard was away or behind."
        yield CounterMetricFamily(f"{_PREFIX}_priorities_dropped", dropped, value=self._sampler.priorities_dropped)
        unknown = "New priorities whose item had left its shard."
        yield CounterMetricFamily(f"{_PREFIX}_unknown_keys", unknown, value=self._sampler.unknown_keys)


def _gauge(name: str, about: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", about, labels=("shard",))
    for shard, value in values.items():
        family.add_metric((shard,), value)
    return family
