"""The parameter server's metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from tidemill.params.version import Precision
from tidemill.services.paramserver.catalog import Catalog

_PREFIX = "tidemill_paramserver"


class Metrics:
    """Metrics for Prometheus. The gauges read the catalog when they are scraped."""

    def __init__(self, catalog: Callable[[], Catalog], registry: CollectorRegistry = REGISTRY) -> None:
        """Register every metric.

        Args:
            catalog: Returns the current catalog; called from the scraping thread.
            registry: Where they are registered, once in a process.
        """

        def gauge(name: str, text: str, read: Callable[[Catalog], int]) -> None:
            Gauge(f"{_PREFIX}_{name}", text, registry=registry).set_function(lambda: read(catalog()))

        gauge("latest_version", "Newest version, 0 for none.", lambda held: max(held.versions, default=0))
        gauge("versions", "Versions kept.", lambda held: len(held.versions))
        gauge("generation", "Newest fencing token handed out.", lambda held: held.fencing_token)
        gauge("stored_bytes", "Bytes of all encodings kept.", _stored_bytes)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        self.published = counter("published_total", "Versions stored.")
        self.publish_seconds = Histogram(
            f"{_PREFIX}_publish_seconds",
            "Time from a publish's header to its version on disk.",
            registry=registry,
        )
        self.fetched_bytes = counter("fetched_bytes_total", "Bytes of parameters sent.", ("precision",))
        for precision in Precision:  # 0 and not absent where all read the folder
            self.fetched_bytes.labels(precision.value)
        self.watchers = Gauge(f"{_PREFIX}_watchers", "Watch calls open.", registry=registry)
        self.fetches = Gauge(f"{_PREFIX}_fetches", "Fetch calls open, also waiting ones.", registry=registry)
        self.unread_fetches = counter(
            "unread_fetches_total", "Fetches ended because less than a piece of 256 KiB of them was read in 30 s."
        )
        self.corrupt_versions = counter("corrupt_versions_total", "Times stored bytes were found corrupt.")
        self.stale_publishes = counter(
            "stale_publishes_total", "Publishes refused because their version is not the next one."
        )
        self.refused_publishes = counter(
            "refused_publishes_total", "Publishes refused for another reason than their version."
        )


def _stored_bytes(catalog: Catalog) -> int:
    return sum(item.size_bytes for version in catalog.versions.values() for item in version.encodings)
