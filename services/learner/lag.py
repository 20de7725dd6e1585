"""How old the policies were that chose the actions trained on, as a histogram of items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_NAME = "tidemill_learner_policy_lag_items_versions"
_HELP = "Items trained on by how many versions older than the newest the parameters were that chose the first action."


class LagHistogram(Collector):
    """Counts a whole batch at once: the client's own histogram takes as long as a small update for 256 items.

    Written by the training thread; scraped by another, which may see a batch half counted.
    """

    def __init__(self) -> None:
        """Have seen nothing."""
        self._edges = np.asarray(_BOUNDS, dtype=np.float64)
        self._counts = np.zeros(len(_BOUNDS) + 1, dtype=np.int64)
        self._sum = 0.0

    def observe(self, versions: NDArray[np.float64], newest: int) -> None:
        """Count items.

        Args:
            versions: Version of the parameters that chose each item's first action, [B].
            newest: Newest version that was published.
        """
        lag = np.maximum(newest - versions, 0.0)
        self._counts += np.bincount(np.searchsorted(self._edges, lag), minlength=len(self._counts))
        self._sum += float(lag.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the histogram for Prometheus."""
        reached = np.cumsum(self._counts).tolist()
        names = [*(f"{bound:.1f}" for bound in _BOUNDS), "+Inf"]
        yield HistogramMetricFamily(_NAME, _HELP, buckets=list(zip(names, reached, strict=True)), sum_value=self._sum)
