"""What Prometheus sees of a learner's GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import structlog
import torch
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric

_PREFIX = "tidemill_learner_gpu"
_ABOUT = {
    "free_bytes": "Free memory of the learner's GPU, whoever uses the rest.",
    "size_bytes": "Memory of the learner's GPU.",
    "allocated_bytes": "Memory that tensors of this process take.",
    "reserved_bytes": "Memory that torch holds for this process, whether or not tensors take it.",
}

_log = structlog.get_logger()


def watch_gpu(device: torch.device) -> None:
    """Let Prometheus read memory and utilisation of a CUDA device, the one this process trains on."""
    REGISTRY.register(GpuCollector(device, Utilisation(device)))


class GpuCollector:
    """A Prometheus collector over one CUDA device. It only reads, so any thread may collect."""

    def __init__(self, device: torch.device, utilisation: Utilisation) -> None:
        """Collect of a device, by torch and by the driver."""
        self._device, self._utilisation = device, utilisation

    def collect(self) -> Iterator[Metric]:
        """Yield memory, and utilisation where the driver tells it."""
        gpu = str(self._device.index or 0)
        free, size = torch.cuda.mem_get_info(self._device)
        allocated, reserved = torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device)
        for (name, about), value in zip(_ABOUT.items(), (free, size, allocated, reserved), strict=True):
            yield _gauge(name, about, gpu, value)
        ratio = self._utilisation.read()
        if ratio is not None:
            yield _gauge("utilisation_ratio", "Share of the newest second or less in which a kernel ran.", gpu, ratio)


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # nvmlUtilization_t, in per cent


class Utilisation:
    """How busy a GPU is, by the library that comes with NVIDIA's driver."""

    def __init__(self, device: torch.device) -> None:
        """Find the device; without the library there is nothing to read, which is logged."""
        self._handle = ctypes.c_void_p()
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            self._library = None
            _log.info("no GPU utilisation", reason=str(error))
            return
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        failed = self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByUUID(
            ctypes.c_char_p(name), ctypes.byref(self._handle)
        )
        if failed:
            self._library = None
            _log.info("no GPU utilisation", nvml_error=failed)

    def read(self) -> float | None:
        """Return the share of time in which a kernel ran, 0 to 1; None if the driver does not tell."""
        rates = _Rates()
        if self._library is None or self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            return None
        return float(rates.gpu) / 100


def _gauge(name: str, about: str, gpu: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", about, labels=("gpu",))
    family.add_metric((gpu,), value)
    return family
