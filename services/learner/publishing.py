"""Publishing of the agent's parameters to the parameter server, without a wait in the training thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.devices import on_stream
from tidemill.params.blob import half, pack
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.services.learner.status.divergence import Diverged, check_finite

_log = structlog.get_logger()


class PolicyPublisher:
    """Publishes copies of the agent's parameters; only the newest one waits while another is on its way.

    The training thread pays for `Agent.policy_state`, copies on the device, and for nothing else: the publisher's
    thread takes them off the device (`HostCopies`), serialises and sends them.
    """

    def __init__(
        self,
        publisher: ParamsPublisher,
        policy_state: Callable[[], Mapping[str, Tensor]],
        metadata: Callable[[], ParamsMetadata],
        *,
        with_half: bool,
        take_snapshot: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts.

        Args:
            publisher: Sends the parameters; closed with this.
            policy_state: Returns copies of the agent's parameters, on its device.
            metadata: Returns the metadata of the current parameters.
            with_half: Whether a float16 encoding is published beside the full one.
            take_snapshot: Called at each `publish`, to keep the state that the parameters are a part of.
        """
        self._publisher, self._policy_state, self._metadata = publisher, policy_state, metadata
        self._with_half, self._take_snapshot = with_half, take_snapshot
        self._copies = HostCopies()

    @property
    def version(self) -> int:
        """Newest version of this learner that the server acknowledged; 0 before the first."""
        return self._publisher.version

    def publish(self) -> None:
        """Take the parameters as they are now; never blocks.

        Raises:
            Diverged: Earlier parameters were not finite; none were sent since.
            StalePublisher: A newer learner publishes now.
        """
        self.check()
        arrays, metadata = self._copies.begin(self._policy_state()), self._metadata()
        self._take_snapshot()
        self._publisher.offer(partial(_encode, arrays, metadata, with_half=self._with_half), metadata)

    def renew(self) -> None:
        """Have the newest version published again if the server has lost it; see `ParamsPublisher.renew`."""
        self._publisher.renew()

    def check(self) -> None:
        """Raise the error that ended publishing, such as `StalePublisher`; never blocks."""
        self._publisher.check()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the newest parameters are acknowledged; return whether they were within `timeout_s`."""
        return self._publisher.flush(timeout_s)

    def drop_diverged(self, timeout_s: float) -> None:
        """Wait for what is on its way, at most `timeout_s`; if it is not finite, drop it and take parameters again."""
        try:
            self.flush(timeout_s)
        except Diverged:
            self._publisher.restart()

    def close(self) -> None:
        """End the publisher without sending what waits. May be called twice."""
        self._publisher.close()


def _encode(copied: Callable[[], Arrays], metadata: ParamsMetadata, *, with_half: bool) -> dict[Precision, bytes]:
    """Return the parameters as safetensors by precision; full precision alone where a value does not fit float16.

    Raises:
        Diverged: A value is not finite.
    """
    arrays = copied()
    check_finite(arrays.values(), "parameters")
    blobs = {Precision.FULL: pack(arrays, metadata)}
    if with_half:
        rounded = half(arrays)
        if rounded is None:
            _log.warning("parameters do not fit float16, only full precision is published")
        else:
            blobs[Precision.HALF] = pack(rounded, metadata)
    return blobs


Arrays = dict[str, NDArray[Any]]


class HostCopies:
    """Copies tensors from a GPU as one piece for each dtype, into pinned memory that is kept, on a separate stream.

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
