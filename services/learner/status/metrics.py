"""The learner's Prometheus metrics."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_left
from collections import Counter as Totals
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.shard_report import ShardReport

_PREFIX = "tidemill_learner"
_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LAG_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_LAG_NAME = "tidemill_learner_policy_lag_items_versions"
_LAG_HELP = (
    "Items trained on, by policy lag: newest version minus the version that chose the item's first action. An action "
    "that no version chose is left out."
)

_AGE_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
_AGE_NAME = "tidemill_learner_item_age_seconds"
_AGE_HELP = (
    "Items trained on, by age: time from insertion to the update (`whole`), of that in the table until drawn, in the "
    "learner's queues, and in decoding, copy to the device included."
)

GPU_ABOUT = {
    "gpu_free_bytes": "Free memory of the learner's GPU, whoever uses the rest.",
    "gpu_size_bytes": "Memory of the learner's GPU.",
    "gpu_allocated_bytes": "Memory that tensors of this process take.",
    "gpu_reserved_bytes": "Memory that torch holds for this process, whether or not tensors take it.",
    "gpu_utilisation_ratio": "Share of the newest second or less in which a kernel ran.",
}
"""Metrics of a learner on a GPU, without the prefix: name to text."""

_log = structlog.get_logger()


class ItemHistogram(Collector):
    """Counts a whole batch at once: the client's own histogram takes as long as a small update for 256 items.

    Written by the training thread; scraped by another, which may see a batch half counted.
    """

    def __init__(self, name: str, about: str, bounds: Sequence[float], part: str = "") -> None:
        """Start empty.

        Args:
            name: Of the metric.
            about: Its description.
            bounds: Upper bounds of its buckets but the last.
            part: Value of the label `part`; empty for a metric without labels.
        """
        self._name, self._about, self._part = name, about, part
        self._edges = np.asarray(bounds, dtype=np.float64)
        self._bounds = [*(f"{float(bound)}" for bound in bounds), "+Inf"]
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0

    def observe(self, values: NDArray[np.floating]) -> None:
        """Count the values of items, [B]."""
        self._counts += np.bincount(np.searchsorted(self._edges, values), minlength=len(self._counts))
        self._sum += float(values.sum())

    def observe_all(self, value: float, items: int) -> None:
        """Count a value that so many items have."""
        self._counts[bisect_left(self._edges, value)] += items
        self._sum += items * value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the histogram for Prometheus."""
        yield self.add_to(HistogramMetricFamily(self._name, self._about, labels=("part",) if self._part else None))

    def add_to(self, family: HistogramMetricFamily) -> HistogramMetricFamily:
        """Return a family with what was counted."""
        buckets = list(zip(self._bounds, np.cumsum(self._counts).tolist(), strict=True))
        family.add_metric((self._part,) if self._part else (), buckets, self._sum)
        return family


class ItemAges(Collector):
    """Time from the insertion of each item to the update that it is used in, and the parts of that time.

    Time in the table is by the clock of the replay server, the rest by the learner's: no clocks are compared.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._table, self._queue, self._decode, self._whole = self._parts = [
            ItemHistogram(_AGE_NAME, _AGE_HELP, _AGE_BOUNDS, part) for part in ("table", "queue", "decode", "whole")
        ]

    def observe(self, batch: ReplayBatch, items: int, now: float) -> None:
        """Count the first items of a batch whose update begins now, by `time.monotonic`."""
        decode_s = batch.decoded_at - batch.taken_at
        since_s = max(now - batch.received_at, 0.0)
        self._queue.observe_all(max(since_s - decode_s, 0.0), items)
        self._decode.observe_all(decode_s, items)
        if batch.table_s is None:
            return
        table_s = batch.table_s[:items].astype(np.float64)
        if np.isnan(table_s).any():
            table_s = table_s[~np.isnan(table_s)]
        self._table.observe(table_s)
        self._whole.observe(table_s + since_s)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the histogram for Prometheus."""
        family = HistogramMetricFamily(_AGE_NAME, _AGE_HELP, labels=("part",))
        for part in self._parts:
            part.add_to(family)
        yield family


STEPS = Counter("tidemill_learner_steps_total", "Updates this process has taken.")
ENV_STEPS = Gauge("tidemill_learner_env_steps", "Agent decisions of the run, also those before restarts and resets.")
PARAMS_VERSION = Gauge("tidemill_learner_params_version", "Newest version the parameter server acknowledged.")
WAIT_SECONDS = Counter(
    "tidemill_learner_wait_seconds_total", "Time the training thread took no step.", ["what"]
)  # what: `data` (the table or its rate limiter), `ranks` (other learners), `pause`, `checkpoint` (copying the state)
STAGE_SECONDS = Counter(
    "tidemill_learner_stage_seconds_total", "Time the threads of the learner worked, by what they did.", ["stage"]
)  # stage: `decode` and `copy` (decoder threads, together), `update` (the training thread)
BLOCKED_RATIO = Gauge(
    "tidemill_learner_blocked_ratio", "Share of the newest seconds that the training thread waited for data or ranks."
)
UPDATE_SECONDS = Histogram(
    "tidemill_learner_update_seconds", "Time of one update as the host sees it.", buckets=_STEP_SECONDS
)
STALLED_SECONDS = Gauge("tidemill_learner_stalled_seconds", "Time since the newest update; 0 once training is over.")
BATCH_AGE_SECONDS = Gauge("tidemill_learner_batch_age_seconds", "Time from the newest batch's arrival to its use.")
POLICY_LAG = Gauge(
    "tidemill_learner_policy_lag_versions",
    "Newest version minus the mean version that chose the newest batch's actions, of those that a version chose.",
)
ITEM_POLICY_LAG = ItemHistogram(_LAG_NAME, _LAG_HELP, _LAG_BOUNDS)
REGISTRY.register(ITEM_POLICY_LAG)
ITEM_AGES = ItemAges()
REGISTRY.register(ITEM_AGES)
TABLE_ITEMS = Gauge("tidemill_learner_table_items", "Items in the table when the newest batch was drawn.")
SOURCE_SAMPLES = Counter(
    "tidemill_learner_source_samples_total", "Items of a source that this process has learned from.", ["source"]
)
SOURCE_RATIO = Gauge("tidemill_learner_source_ratio", "Share of each batch that comes from a source.", ["source"])
SOURCE_ITEMS = Gauge(
    "tidemill_learner_source_items", "Items in the table of a source when the newest batch was drawn.", ["source"]
)
SOURCE_AGE_SECONDS = Gauge(
    "tidemill_learner_source_age_seconds",
    "Mean time from the insertion of a source's items to their update, of the newest batch.",
    ["source"],
)
MIRROR_BYTES = Gauge(
    "tidemill_learner_mirror_bytes", "Memory of the mirror once it is full, by the rank that keeps it.", ["kept_by"]
)
MIRROR_DEVICE_BYTES = Gauge(
    "tidemill_learner_mirror_device_bytes",
    "Memory of the training device that the mirror's observations take.",
)
MIRROR_ROWS_UPLOADED = Counter(
    "tidemill_learner_mirror_rows_uploaded_total", "Steps whose observations were copied to the device's mirror."
)
MIRROR_READERS = Gauge("tidemill_learner_mirror_readers", "Ranks that read a mirror shared by this one; 0: not shared.")
CHECKPOINT_SECONDS = Histogram("tidemill_learner_checkpoint_seconds", "Time to write a checkpoint to disk.")
CHECKPOINT_FAILURES = Counter("tidemill_learner_checkpoint_failures_total", "Checkpoints that could not be written.")
CHECKPOINT_STEPS = Gauge("tidemill_learner_checkpoint_steps", "Updates in the newest checkpoint.")
CHECKPOINT_STEPS.set(math.nan)  # 0 would mean that there is none to restore
AGENT = Gauge("tidemill_learner_agent", "The agent's own metrics, such as losses.", ["name"])


def unregister_rank_0_metrics() -> None:
    """Show no versions and no checkpoints: a rank that publishes and writes none would look idle."""
    of_rank_0 = (PARAMS_VERSION, POLICY_LAG, ITEM_POLICY_LAG, CHECKPOINT_SECONDS, CHECKPOINT_FAILURES, CHECKPOINT_STEPS)
    for collector in of_rank_0:
        REGISTRY.unregister(collector)


class DatasetCounters(Collector):
    """Counters of all datasets, including closed ones."""

    _ABOUT: ClassVar = {
        "priorities_dropped": "New priorities not delivered because the replay service was unavailable.",
        "damaged_items": "Items left out because their bytes could not be decoded.",
        "mirror_overruns": "Samples dropped because the mirror's rows were written over meanwhile.",
    }

    def __init__(self) -> None:
        """Start with none."""
        self._open: list[ReplayDataset] = []
        self._closed: Totals[str] = Totals()

    def add(self, dataset: ReplayDataset) -> None:
        """Count what a dataset counts."""
        self._open.append(dataset)

    def remove(self, dataset: ReplayDataset) -> None:
        """Keep what a dataset has counted."""
        self._open.remove(dataset)
        self._closed.update(_counts(dataset))

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters."""
        totals = sum((Totals(_counts(dataset)) for dataset in list(self._open)), Totals(self._closed))
        for name, about in self._ABOUT.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", about, value=totals[name])


def _counts(dataset: ReplayDataset) -> dict[str, int]:
    return {
        "priorities_dropped": dataset.priorities_dropped,
        "damaged_items": dataset.corrupt_items,
        "mirror_overruns": dataset.overruns,
    }


DATASETS = DatasetCounters()
REGISTRY.register(DATASETS)


def collect(dataset: ReplayDataset, stack: ExitStack) -> None:
    """Show a dataset's metrics until `stack` ends."""
    collector = SamplerCollector(dataset)
    REGISTRY.register(collector)
    stack.callback(REGISTRY.unregister, collector)
    DATASETS.add(dataset)
    stack.callback(DATASETS.remove, dataset)


class SamplerCollector:
    """A Prometheus collector over a dataset's servers. It only reads, so any thread may collect."""

    def __init__(self, dataset: ReplayDataset) -> None:
        """Collect from a dataset."""
        self._dataset = dataset

    def collect(self) -> Iterator[Metric]:
        """Yield the number of reconnects, and the metrics of each shard of the first table if there are several."""
        about = "Sample streams lost and opened again."
        yield CounterMetricFamily(f"{_PREFIX}_sample_reconnects", about, value=self._dataset.reconnects)
        if reports := self._dataset.shards(0):
            yield from self._of_shards(reports)

    def _of_shards(self, reports: tuple[ShardReport, ...]) -> Iterator[Metric]:
        """Yield each shard's liveness, items, weight, samples and fraction of them, and the fate of priorities."""
        total = sum(report.samples for report in reports) or 1
        live, items = {r.name: float(r.live) for r in reports}, {r.name: float(r.items) for r in reports}
        yield _gauge("shard_live", "Whether the replay shard answers.", "shard", live)
        yield _gauge("shard_items", "Items in the shard's part of the table.", "shard", items)
        weights = {r.name: r.total_weight for r in reports}
        yield _gauge("shard_total_weight", "Sum of the shard's sampler weights.", "shard", weights)
        fractions = {r.name: r.samples / total for r in reports}
        yield _gauge("shard_sample_ratio", "Share of all samples so far that came from the shard.", "shard", fractions)
        samples = CounterMetricFamily(f"{_PREFIX}_shard_samples", "Items the shard has given.", labels=("shard",))
        for report in reports:
            samples.add_metric((report.name,), report.samples)
        yield samples
        dropped, unknown = self._dataset.lost_priorities(0)
        about = "New priorities that were not delivered, because their shard was unavailable or slow."
        yield CounterMetricFamily(f"{_PREFIX}_shard_priorities_dropped", about, value=dropped)
        about = "New priorities whose item had left its shard."
        yield CounterMetricFamily(f"{_PREFIX}_shard_unknown_keys", about, value=unknown)


def watch_gpu(device: torch.device) -> None:
    """Let Prometheus read memory and utilisation of a CUDA device, the one this process trains on."""
    REGISTRY.register(GpuCollector(device, GpuUtilisation(device)))


class GpuCollector:
    """A Prometheus collector over one CUDA device. It only reads, so any thread may collect."""

    def __init__(self, device: torch.device, utilisation: GpuUtilisation) -> None:
        """Collect of a device, by torch and by the driver."""
        self._device, self._utilisation = device, utilisation

    def collect(self) -> Iterator[Metric]:
        """Yield memory, and utilisation if the driver reports it."""
        gpu = str(self._device.index or 0)
        free, size = torch.cuda.mem_get_info(self._device)
        allocated, reserved = torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device)
        values = (free, size, allocated, reserved, self._utilisation.read())
        for (name, about), value in zip(GPU_ABOUT.items(), values, strict=True):
            if value is not None:
                yield _gauge(name, about, "gpu", {gpu: value})


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # nvmlUtilization_t, in per cent


class GpuUtilisation:
    """Utilisation of a GPU, from the library that comes with NVIDIA's driver."""

    def __init__(self, device: torch.device) -> None:
        """Find the device; without the library there is nothing to read, which is logged."""
        self._handle = ctypes.c_void_p()
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            self._library = None
            _log.info("GPU utilisation not available", reason=str(error))
            return
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        failed = self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByUUID(
            ctypes.c_char_p(name), ctypes.byref(self._handle)
        )
        if failed:
            self._library = None
            _log.info("GPU utilisation not available", nvml_error=failed)

    def read(self) -> float | None:
        """Return the share of time in which a kernel ran, 0 to 1; None if the driver does not report it."""
        rates = _Rates()
        if self._library is None or self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            return None
        return float(rates.gpu) / 100


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", about, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
