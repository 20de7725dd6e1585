"""Brings tensors from the training device to the host, beside the updates that are queued there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.devices import on_stream

Arrays = dict[str, NDArray[Any]]


class HostCopies:
    """Copies tensors from a GPU as one piece for each dtype, into pinned memory that is kept, on a stream of their own.

    A plain copy of each tensor would wait in the training stream for all updates before it, dozens of times.
    """

    def __init__(self) -> None:
        """Open nothing before the first tensor of a GPU."""
        self._stream: torch.cuda.Stream | None = None
        self._pinned: dict[torch.dtype, Tensor] = {}

    def begin(self, state: Mapping[str, Tensor]) -> Callable[[], Arrays]:
        """Return a function that copies tensors as they are once the calling thread's stream has come to this place.

        Args:
            state: By name, of one device; nobody writes to them any more.

        Returns:
            What returns them as arrays. One thread calls it, once; its arrays are valid until the next such call.
        """
        devices = {tensor.device for tensor in state.values() if tensor.is_cuda}
        if not devices:
            return lambda: {name: tensor.numpy() for name, tensor in state.items()}
        (device,) = devices
        there = torch.cuda.current_stream(device).record_event()
        return lambda: self._copied(state, device, there)

    def _copied(self, state: Mapping[str, Tensor], device: torch.device, there: torch.cuda.Event) -> Arrays:
        self._stream = self._stream or torch.cuda.Stream(device)
        names: dict[torch.dtype, list[str]] = {}
        for name, tensor in state.items():
            if tensor.is_cuda:
                names.setdefault(tensor.dtype, []).append(name)
        end = torch.cuda.Event(blocking=True)  # a core that waits does not spin
        with on_stream(self._stream):
            self._stream.wait_event(there)
            pieces = {dtype: self._begun([state[name] for name in of], dtype) for dtype, of in names.items()}
            end.record()
        end.synchronize()
        arrays = {name: tensor.numpy() for name, tensor in state.items() if not tensor.is_cuda}
        for dtype, of in names.items():
            parts = pieces[dtype].split([state[name].numel() for name in of])
            arrays |= {name: part.view(state[name].shape).numpy() for name, part in zip(of, parts, strict=True)}
        return {name: arrays[name] for name in state}

    def _begun(self, tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Start the copy of all numbers of one dtype; return where they will be."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        pinned = self._pinned.get(dtype)
        if pinned is None or pinned.numel() < flat.numel():
            pinned = self._pinned[dtype] = torch.empty(flat.numel(), dtype=dtype, pin_memory=True)
        return pinned[: flat.numel()].copy_(flat, non_blocking=True)
