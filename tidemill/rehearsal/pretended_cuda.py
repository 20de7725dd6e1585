"""Stands in for `torch.cuda`: checks arguments as the real one does, and keeps the current device of each thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.cuda._utils import _get_device_index  # the real check of arguments

from tidemill.rehearsal.watch import Watch, key_of, pinned

_MEMORY_BYTES = 80 * 2**30
_RNG_STATE_BYTES = 16
_IMAGE_DIMENSIONS = 4


class Properties:
    """Properties of every pretended GPU."""

    uuid = "00000000-0000-0000-0000-000000000000"
    name = "a pretended H100"
    major = 9
    minor = 0
    total_memory = _MEMORY_BYTES
    multi_processor_count = 132


class Event:
    """A CUDA event that has always passed."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def wait(self, stream: object = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing: whoever waits for an event means to."""

    def query(self) -> bool:
        """Return that it has passed."""
        return True


class PretendedCuda:
    """So many GPUs, as the threads of this process use them.

    Attributes:
        watch: Notes what an update would do on them.
        contexts: Which GPUs each thread, by its name, has opened: a context takes half a gigabyte of each.
        gpus: How many there are; `torch.cuda` finds so many.
    """

    def __init__(self, gpus: int) -> None:
        """Have `torch.cuda` find so many GPUs from now on; `tidemill.rehearsal.library.load` must have been called."""
        self.watch = Watch()
        self.contexts: defaultdict[str, set[int]] = defaultdict(set)
        self.gpus = gpus
        self._thread = threading.local()
        self._default_streams = [Stream(self, torch.device("cuda", index)) for index in range(gpus)]
        self._fakes: list[_FakeMode] = []
        _replace_tensor_functions(self.watch)
        _convolve_as_cudnn()
        self._replace_module()

    @contextmanager
    def rehearsing(self) -> Iterator[Watch]:
        """Have no operation of this thread compute anything within the context; yield what sees all of them.

        Contexts within the outermost one, of any thread, may use each other's tensors; others may not.
        """
        fake = self._fakes[-1] if self._fakes else _FakeMode(allow_non_fake_inputs=True)
        self._fakes.append(fake)
        try:
            with fake, self.watch:
                yield self.watch
        finally:
            self._fakes.pop()

    @property
    def current_device(self) -> int:
        """Index of the calling thread's current device."""
        return getattr(self._thread, "device", 0)

    def set_device(self, device: Any) -> None:
        """Make a device the calling thread's, as `torch.cuda.set_device`; raises ValueError if it has no index."""
        self._open(_get_device_index(device))

    def current_stream(self, device: Any = None) -> Stream:
        """Return the calling thread's stream on a device."""
        index = self.current_device if device is None else self.index_of(device)
        own: dict[int, Stream] = getattr(self._thread, "streams", {})
        return own.get(index, self._default_streams[index])

    def index_of(self, device: Any) -> int:
        """Return the index of a device that may be named without one."""
        if isinstance(device, torch.device) and not str(device).partition(":")[2]:
            return self.current_device
        return int(_get_device_index(device, optional=True))

    def set_stream(self, stream: Stream) -> None:
        """Make a stream the calling thread's, and its device the current one."""
        if stream.device.index != self.current_device:
            self._open(stream.device.index)  # by cudaSetDevice, which opens a context from CUDA 12 on
        self._thread.streams = {**getattr(self._thread, "streams", {}), stream.device.index: stream}

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        """As `torch.cuda.StreamContext`: at its end the stream and the device that the thread had before."""
        if stream is None:
            yield
            return
        before = self.current_stream()
        there = self.current_stream(stream.device) if before.device != stream.device else None
        self.set_stream(stream)
        try:
            yield
        finally:
            if there is not None:
                self.set_stream(there)
            self.set_stream(before)

    @contextmanager
    def graph(
        self,
        cuda_graph: Graph,
        pool: object = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        """As `torch.cuda.graph`; the operations within are not launched."""
        watch = self.watch
        before = watch.launches
        watch.capturing, watch.registered = True, set(cuda_graph.registered)
        try:
            with self.stream(stream):
                yield
        finally:
            watch.capturing, watch.launches = False, before

    def _open(self, index: int) -> None:
        self._thread.device = index
        self.contexts[threading.current_thread().name].add(index)

    def _replace_module(self) -> None:
        replaced: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: self.gpus,
            "get_arch_list": lambda: ["sm_90"],
            "current_device": lambda: self.current_device,
            "set_device": self.set_device,
            "Stream": lambda device=None, priority=0: Stream(self, torch.device("cuda", self.index_of(device))),
            "Event": Event,
            "current_stream": self.current_stream,
            "default_stream": self.current_stream,
            "set_stream": self.set_stream,
            "stream": self.stream,
            "graph_pool_handle": object,
            "CUDAGraph": lambda: Graph(self.watch),
            "graph": self.graph,
            "get_device_capability": lambda device=None: (Properties.major, Properties.minor),
            "get_device_properties": lambda device=None: Properties,
            "get_device_name": lambda device=None: Properties.name,
            "mem_get_info": lambda device=None: (_MEMORY_BYTES, _MEMORY_BYTES),
            "memory_allocated": lambda device=None: 0,
            "memory_reserved": lambda device=None: 0,
            "synchronize": lambda device=None: self.watch.note("waits", "torch.cuda.synchronize"),
            "empty_cache": lambda: None,
            "manual_seed": lambda seed: None,
            "manual_seed_all": lambda seed: None,
            "get_rng_state_all": lambda: [_rng_state() for _ in range(self.gpus)],
            "set_rng_state_all": lambda states: None,
            "_lazy_init": lambda: None,
        }
        for name, function in replaced.items():
            setattr(torch.cuda, name, function)


class Stream:
    """A CUDA stream of a pretended GPU."""

    def __init__(self, cuda: PretendedCuda, device: torch.device) -> None:
        """Take the GPUs, and the one of them that it is of."""
        self._cuda = cuda
        self.device = device

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing."""

    def wait_event(self, event: Event) -> None:
        """Do nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event."""
        return event or Event()

    def synchronize(self) -> None:
        """Note that the host waits."""
        self._cuda.watch.note("waits", "Stream.synchronize")

    def query(self) -> bool:
        """Return that all is done."""
        return True


class Graph:
    """A CUDA graph: repeated, it is one launch, and two that prepare each generator's state.

    Attributes:
        registered: Its generators.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.registered: list[int] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Note a generator whose state moves on at each repeat."""
        self.registered.append(key_of(generator))

    def replay(self) -> None:
        """Count the launches."""
        self._watch.launches += 1 + 2 * len(self.registered)


class _FakeMode(FakeTensorMode):
    """Follows shapes, types and devices of tensors without their memory."""

    avoid_device_init = True  # nothing is copied to a device that is not there

    def __deepcopy__(self, memo: object) -> _FakeMode:
        """Return itself: a tensor that is copied stays in its mode, whose copy would free memory twice."""
        return self


def _rng_state() -> Tensor:
    return torch.zeros(_RNG_STATE_BYTES, dtype=torch.uint8)


def _apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do as `nn.Module._apply`, but by new parameters: a fake tensor's inside cannot be exchanged."""
    for child in module.children():
        child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = nn.Parameter(function(parameter.detach()), parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _convolve_as_cudnn() -> None:
    """Have convolutions of a GPU answer channels last if images or weights lie so, as cuDNN does.

    torch asks its own build for the order, and a CPU build answers channels first for any GPU.
    """
    real = torch._C._conv_determine_backend_memory_format

    def order(input: Tensor, weight: Tensor, backend: Any) -> torch.memory_format:
        """Return the order in which a convolution and its gradients lie."""
        if input.device.type != "cuda" or input.ndim != _IMAGE_DIMENSIONS:
            return real(input, weight, backend)
        orders = [torch._prims_common.suggest_memory_format(each) for each in (input, weight)]
        return torch.channels_last if torch.channels_last in orders else torch.contiguous_format

    torch._C._conv_determine_backend_memory_format = order


def _replace_tensor_functions(watch: Watch) -> None:
    """Replace what fake tensors cannot do, and what no dispatch mode sees."""
    real_tensor, real_empty = torch.tensor, torch.empty

    def tensor(data: object, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Return a tensor of numbers; those of a device are copied there while the host waits."""
        if device is None or torch.device(device).type != "cuda":
            return real_tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
        made = real_tensor(data, dtype=dtype)
        watch.note("waits", "torch.tensor", "numbers of the host on the device")
        return real_empty(made.shape, dtype=made.dtype, device=device).requires_grad_(requires_grad)

    def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        """Return memory that is not initialised."""
        made = real_empty(*args, **kwargs)
        return pinned(made) if pin_memory else made

    replaced: list[tuple[object, str, Callable[..., Any]]] = [
        (torch, "tensor", tensor),
        (torch, "empty", empty),
        (nn.Module, "_apply", _apply),
        (Tensor, "pin_memory", lambda tensor, device=None: pinned(tensor.clone())),
        (Tensor, "record_stream", lambda tensor, stream: None),
    ]
    for owner, name, function in replaced:
        setattr(owner, name, function)
