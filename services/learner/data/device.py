"""The training device, and the copies of batches to it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill import container_limits, gpus
from tidemill.config.learners import check_device
from tidemill.config.sections import LearnerConfig
from tidemill.devices import named_device, on_stream
from tidemill.rl.networks.torsos import AUTO, MLP
from tidemill.rl.settings.registry import LearnsOnPolicy
from tidemill.services.learner.data.device_rows import DeviceRows, StreamQueue
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.types import EnvSpec

_log = structlog.get_logger()


_SMALL_BYTES = 2**20
"""Of a column that is copied twice sooner than by a call alone; a column of images is larger."""
_ALIGNMENT = 64
"""Bytes: of where a column begins, a multiple of any element's size."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """Tensors that are on the device, or on their way to it.

    Attributes:
        tensors: By name; on a GPU, do not use them before `wait`.
        event: Marks the end of the copy on its own stream; None on a CPU.
    """

    tensors: dict[str, Tensor]
    event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Order the calling thread's stream after the copy; the host does not wait.

        Who uses the tensors keeps this batch until the device is past their use (`DeviceBacklog`): their memory is the
        copying stream's, which takes it for another batch as soon as nothing refers to it.
        """
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class DeviceBacklog:
    """Keeps the host at most `AHEAD` updates ahead of a GPU.

    An update that is launched as a graph takes the host far less time than the GPU: without a bound, priorities and
    parameters would lag by as many updates as are queued, and each keeps the memory of its batch, which is given up
    here once its update is over.
    """

    AHEAD = 4

    def __init__(self) -> None:
        self._ends: deque[tuple[torch.cuda.Event, DeviceBatch]] = deque()

    def add(self, batch: DeviceBatch) -> None:
        """Count the update of a batch that was just launched; wait for the one `AHEAD` updates ago, if on a GPU."""
        if batch.event is None:
            return
        end = torch.cuda.Event(blocking=True)  # a core that waits does not spin: decoders have use for it
        end.record()
        self._ends.append((end, batch))
        if len(self._ends) > self.AHEAD:
            self._ends[0][0].synchronize()
            self._ends.popleft()


class DevicePrefetcher:
    """Starts copies; on a GPU from pinned memory on a stream beside the training thread's."""

    def __init__(self, device: torch.device, rows: DeviceRows | None = None) -> None:
        """Open the stream.

        Args:
            device: Where batches go.
            rows: Observations that are there already; batches then go by the stream that keeps those.
        """
        self._device, self._rows = device, rows
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            queue = rows.queue if rows is not None else StreamQueue(device)
            assert isinstance(queue, StreamQueue)
            self._stream = queue.stream

    @property
    def has_observations(self) -> bool:
        """Whether observations are on the device already."""
        return self._rows is not None

    def start(self, arrays: Mapping[str, NDArray[Any]], numbers: Sequence[str] = ()) -> DeviceBatch:
        """Return the arrays as tensors; on a CPU they share the arrays' memory.

        Args:
            arrays: By name.
            numbers: Names of those that are row numbers, int64, instead of which the observations there are returned.
        """
        if self._stream is None:
            host = {name: torch.from_numpy(array) for name, array in arrays.items()}
            return DeviceBatch(self._gathered(host, numbers))
        with on_stream(self._stream):
            return DeviceBatch(self._gathered(copied(arrays, self._device), numbers), self._stream.record_event())

    def _gathered(self, tensors: dict[str, Tensor], numbers: Sequence[str]) -> dict[str, Tensor]:
        rows = self._rows
        if rows is None:
            return tensors
        return tensors | {name: rows.take(tensors[name]) for name in numbers}


def copied(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Start copies of arrays to a GPU in the current stream; the small ones travel together.

    Each call into torch gives up the interpreter and waits to get it back, and so does each kernel that the training
    thread launches. With some calls for each column, both threads spent most of their time waiting for the other.
    """
    small = {name: array for name, array in arrays.items() if array.nbytes <= _SMALL_BYTES}
    sizes = [array.nbytes + -array.nbytes % _ALIGNMENT for array in small.values()]
    packed = np.zeros(sum(sizes), np.uint8)
    for start, array in zip(accumulate(sizes, initial=0), small.values(), strict=False):
        packed[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    pieces = _sent(packed, device).split(sizes)
    return {name: _shaped(piece, array) for (name, array), piece in zip(small.items(), pieces, strict=True)} | {
        name: _sent(array, device) for name, array in arrays.items() if name not in small
    }


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(array)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _shaped(piece: Tensor, array: NDArray[Any]) -> Tensor:
    """Return the bytes that a piece begins with as an array of the same shape and type."""
    values = piece.view(_dtype_of(array.dtype))
    return values if values.shape == array.shape else values[: array.size].view(array.shape)


@cache
def _dtype_of(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def resolve_device(name: str, rank: RankInfo | None = None) -> torch.device:
    """Return the device of `learner.device` for one of the ranks.

    Of several ranks each takes the GPU of its number on its machine, and the only one takes the first, always with
    its index.

    Raises:
        ConfigError: There is no such device on this machine, this build of torch cannot use it, all ranks would share
            one GPU, or all would train on the CPU because torch can use none of the GPUs here.
    """
    rank = rank or RankInfo()
    if rank.size > 1 and name == "auto":
        gpus.check_usable(f"{rank.size} learners would share the CPU", "set learner.device to cpu")
    check_device(name, rank.size)
    return named_device("learner.device", name, gpu=rank.local_index, falls_back=rank.size == 1)


LARGE_PRODUCTS = 2**23
"""Multiplications of a layer for a batch that take a core as long as the host to launch an update's kernels: some 4 ms.

From 398 and 124 updates/s of a core with two layers of 256 for 32 and 256 items (benchmarks/results/update.json) and
3.4 to 4.1 ms of an update that an H100's host launches (benchmarks/results/gpu_updates_h100.json).
"""


def learner_device(config: LearnerConfig, spec: EnvSpec, rank: RankInfo) -> torch.device:
    """Return the device of one of the ranks; with `auto` a learner alone takes a GPU only where that pays.

    Args:
        config: The learner's settings.
        spec: Of the environment.
        rank: Which of the ranks it is.

    Raises:
        ConfigError: See `resolve_device`.
    """
    device = resolve_device(config.learner.device, rank)
    if config.learner.device != "auto" or device.type != "cuda" or rank.size > 1:
        return device
    if why := why_gpu(config.agent, spec, is_deterministic=config.run.deterministic):
        _log.info("training on the GPU", why=why)
        return device
    why = "layers this small are faster on a CPU core; set learner.device to cuda to override"
    _log.info("training on the CPU although there is a GPU", why=why)
    return torch.device("cpu")


def why_gpu(agent: Any, spec: EnvSpec, *, is_deterministic: bool) -> str:  # noqa: ANN401 - settings of any algorithm
    """Return the reason that a GPU updates an agent faster than a core; empty if it does not.

    Args:
        agent: The algorithm's settings.
        spec: Of the environment.
        is_deterministic: Whether the run is, in which `agent.compile: auto` records no updates.
    """
    if _has_images(spec):
        return "observations are images"
    if (network := getattr(agent, "network", AUTO)) not in (AUTO, MLP):
        return f"agent.network is {network}"
    recorded = ("cuda-graphs",) if is_deterministic else ("auto", "cuda-graphs")
    if getattr(agent, "compile", "none") in recorded and not isinstance(agent, LearnsOnPolicy):
        return "an update is launched as one CUDA graph"
    products = _largest_products(agent, spec)
    return f"{products / 1e6:.0f} million multiplications in a layer" if products >= LARGE_PRODUCTS else ""


_MOST_THREADS = 8
"""Threads that a learner takes unasked: more have little of a batch each, and wait actively for the others.

Two were measured, on two cores: in a whole run DQN on Pong made a fifth more updates a second, PPO four tenths more.
"""


def torch_threads(config: LearnerConfig, spec: EnvSpec, device: torch.device, rank: RankInfo) -> int:
    """Return the threads that torch computes with in one of the ranks.

    With -1 an update of images has the processors of actors as well: they wait for it. Small layers gain nothing.

    Args:
        config: The learner's settings.
        spec: Of the environment.
        device: Where the rank trains.
        rank: Which of the ranks it is.
    """
    if config.learner.threads >= 0:
        return config.learner.threads or container_limits.cpus()
    alone_on_a_cpu = device.type == "cpu" and rank.size == 1
    return min(container_limits.cpus(), _MOST_THREADS) if alone_on_a_cpu and _has_images(spec) else 1


def _has_images(spec: EnvSpec) -> bool:
    shapes = [part.shape for part in spec.observation_parts if part.is_image]
    shapes += [spec.observation_shape] if spec.is_image else []
    return any(len(shape) > 1 for shape in shapes)


def _largest_products(agent: Any, spec: EnvSpec) -> int:  # noqa: ANN401
    """Return the multiplications of the largest layer for the items of one gradient step."""
    inputs = spec.frame_stack * math.prod(spec.observation_shape)
    layers = [0]
    for field in fields(agent):
        sizes = getattr(agent, field.name)
        if field.name.endswith("_sizes") and isinstance(sizes, tuple | list):
            widths = (inputs, *sizes)
            layers += [wide * next_wide for wide, next_wide in pairwise(widths)]
    if lstm := getattr(agent, "lstm_size", 0):
        layers.append(4 * lstm * 2 * lstm)
    steps = agent.window(spec.frame_stack).steps if lstm or isinstance(agent, LearnsOnPolicy) else 1
    return int(agent.batch_size * steps // getattr(agent, "minibatches", 1) * max(layers))
