"""The training device, and the copies of batches to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill import gpus
from tidemill.devices import named_device, on_stream
from tidemill.errors import ConfigError
from tidemill.services.learner.data.device_rows import DeviceRows, StreamQueue
from tidemill.services.learner.distributed.learner_group import RankInfo


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
        """Order the calling thread's stream after the copy; the host does not wait."""
        if self.event is None:
            return
        stream = torch.cuda.current_stream()
        stream.wait_event(self.event)
        for tensor in self.tensors.values():
            tensor.record_stream(stream)  # keeps the memory until this stream is past its use


class DeviceBacklog:
    """Keeps the host at most `AHEAD` updates ahead of a GPU.

    An update that is launched as a graph takes the host far less time than the GPU: without a bound, priorities and
    parameters would lag by as many updates as are queued, and each keeps the memory of its batch.
    """

    AHEAD = 4

    def __init__(self) -> None:
        self._ends: deque[torch.cuda.Event] = deque()

    def add(self, batch: DeviceBatch) -> None:
        """Count the update of a batch that was just launched; wait for the one `AHEAD` updates ago, if on a GPU."""
        if batch.event is None:
            return
        end = torch.cuda.Event(blocking=True)  # a core that waits does not spin: decoders have use for it
        end.record()
        self._ends.append(end)
        if len(self._ends) > self.AHEAD:
            self._ends.popleft().synchronize()


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

    @property
    def observation_bytes(self) -> int:
        """Bytes of the host's memory that each observation takes which is gathered from those on the device."""
        return self._rows.host_bytes if self._rows is not None else 0

    def start(self, arrays: Mapping[str, NDArray[Any]], numbers: Sequence[str] = ()) -> DeviceBatch:
        """Return the arrays as tensors; on a CPU they share the arrays' memory.

        Args:
            arrays: By name.
            numbers: Names of those that are row numbers, int64, instead of which the observations there are returned.
        """
        host = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._stream is None:
            return DeviceBatch(self._gathered(host, numbers))
        with on_stream(self._stream):
            copies = {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in host.items()}
            return DeviceBatch(self._gathered(copies, numbers), self._stream.record_event())

    def _gathered(self, tensors: dict[str, Tensor], numbers: Sequence[str]) -> dict[str, Tensor]:
        rows = self._rows
        if rows is None:
            return tensors
        return tensors | {name: rows.take(tensors[name]) for name in numbers}


def resolve_device(name: str, rank: RankInfo | None = None) -> torch.device:
    """Return the device of `learner.device` for one of the ranks.

    Of several ranks each takes the GPU of its number on its machine, and the only one takes the first, always with
    its index.

    Raises:
        ConfigError: There is no such device on this machine, this build of torch cannot use it, all ranks would share
            one GPU, or all would train on the CPU because torch can use none of the GPUs here.
    """
    if rank is not None and rank.size > 1 and name == "auto":
        gpus.check_usable(f"{rank.size} learners would share the CPU", "set learner.device to cpu")
    if rank is not None and rank.size > 1 and name.startswith("cuda:"):
        raise ConfigError(f"learner.device is {name!r}, which {rank.size} learners cannot share; use auto or cuda")
    return named_device("learner.device", name, gpu=0 if rank is None else rank.local_index)
