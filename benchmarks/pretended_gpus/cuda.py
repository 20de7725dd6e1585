"""Stands in for `torch.cuda` where GPUs are pretended with real numbers: its functions answer by cuda.cpp."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda._utils import _get_device_index  # the real check of arguments

GPUS = int(os.environ["TIDEMILL_PRETENDED_GPUS"])
_LIBRARY = ctypes.CDLL(os.environ["TIDEMILL_PRETENDED_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
_MEMORY_BYTES = 80 * 2**30
_RNG_WORDS = 2

for _name, _answer in (
    ("error", ctypes.c_char_p),
    ("new_stream", ctypes.c_int64),
    ("stream", ctypes.c_int64),
    ("allocated", ctypes.c_int64),
    ("operations", ctypes.c_int64),
    ("new_graph", ctypes.c_void_p),
):
    getattr(_LIBRARY, f"pretended_{_name}").restype = _answer


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBRARY, f"pretended_{name}")(*arguments):
        raise RuntimeError(_LIBRARY.pretended_error().decode())


def _index(device: object = None) -> int:
    if device is None or (isinstance(device, torch.device) and not str(device).partition(":")[2]):
        return current_device()
    return int(_get_device_index(device, optional=True))


def current_device() -> int:
    """Return the calling thread's."""
    return int(_LIBRARY.pretended_device())


def set_device(device: Any) -> None:
    """Make a device the calling thread's; raises ValueError if it has no index, as the real one."""
    _call("set_device", _get_device_index(device))


class Properties:
    """Of each GPU."""

    name = "Pretended H100"
    major, minor = 9, 0
    total_memory = _MEMORY_BYTES
    multi_processor_count = 132
    uuid = "00000000-0000-0000-0000-000000000000"


class Stream:
    """A stream: what is handed over to it has been done when the call returns."""

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None) -> None:
        """Take the device, the calling thread's if none is given."""
        self.device = torch.device("cuda", _index(device))
        self.stream_id = int(_LIBRARY.pretended_new_stream()) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id

    def __eq__(self, other: object) -> bool:
        """Compare device and number."""
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        """Hash device and number."""
        return hash((self.device, self.stream_id))

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: it is done."""

    def wait_event(self, event: Event) -> None:
        """Do nothing: it is done."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event of now."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Do nothing: it is done."""

    def query(self) -> bool:
        """Return that it is done."""
        return True


class Event:
    """A point in time."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what torch's takes."""
        self._at_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Note the time."""
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds until another."""
        return (end._at_s - self._at_s) * 1000

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: it is done."""

    def synchronize(self) -> None:
        """Do nothing: it is done."""

    def query(self) -> bool:
        """Return that it is done."""
        return True


def current_stream(device: object = None) -> Stream:
    """Return the calling thread's stream on a device."""
    index = _index(device)
    return Stream(torch.device("cuda", index), stream_id=int(_LIBRARY.pretended_stream(index)))


def set_stream(stream: Stream) -> None:
    """Make a stream the calling thread's, and its device the current one."""
    set_device(stream.device)
    _LIBRARY.pretended_set_stream(stream.device.index, ctypes.c_int64(stream.stream_id))


@contextlib.contextmanager
def stream_context(stream: Stream | None) -> Iterator[None]:
    """As `torch.cuda.StreamContext`: at its end the stream and the device that the thread had before."""
    if stream is None:
        yield
        return
    before, there = current_stream(), current_stream(stream.device)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(there)
        set_stream(before)


class Graph:
    """A CUDA graph: operations that are repeated on the same memory."""

    def __init__(self, keep_graph: bool = False) -> None:
        """Make an empty one."""
        self.handle = ctypes.c_void_p(_LIBRARY.pretended_new_graph())

    def __del__(self) -> None:
        """Free what it holds."""
        _LIBRARY.pretended_drop_graph(self.handle)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Take a generator, which moves on at each repeat."""

    def replay(self) -> None:
        """Repeat its operations."""
        _call("replay", self.handle)

    def reset(self) -> None:
        """Forget them."""
        _LIBRARY.pretended_drop_graph(self.handle)
        self.handle = ctypes.c_void_p(_LIBRARY.pretended_new_graph())


@contextlib.contextmanager
def graph(
    cuda_graph: Graph,
    pool: object = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:
    """Record what is done on a stream; nothing of it has been done at the end."""
    stream = stream or Stream()
    number = ctypes.c_int64(stream.stream_id)
    with stream_context(stream):
        _call("begin_capture", cuda_graph.handle, number)
        try:
            yield
        finally:
            _call("end_capture", number)


def _rng_state(device: object = "cuda") -> Tensor:
    words = (ctypes.c_uint64 * _RNG_WORDS)()
    _LIBRARY.pretended_rng(_index(torch.device(device) if isinstance(device, str) else device), words)
    return torch.frombuffer(bytearray(bytes(words)), dtype=torch.uint8)


def _set_rng_state(state: Tensor, device: object = "cuda") -> None:
    words = (ctypes.c_uint64 * _RNG_WORDS).from_buffer_copy(state.numpy().tobytes())
    _LIBRARY.pretended_set_rng(_index(torch.device(device) if isinstance(device, str) else device), words)


def _seed(index: int, seed: int) -> None:
    _LIBRARY.pretended_set_rng(index, (ctypes.c_uint64 * _RNG_WORDS)(seed % 2**64, 0))


def _set_all(states: Sequence[Tensor]) -> None:
    for index, state in enumerate(states):
        _set_rng_state(state, index)


def _seed_all(seed: int) -> None:
    for index in range(GPUS):
        _seed(index, seed)


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy, for `deepcopy`: a CPU build makes no storage for a GPU but a tensor's."""
    made = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device).untyped_storage()
    return made.copy_(storage)


def _allocated(device: object = None) -> int:
    return int(_LIBRARY.pretended_allocated(_index(device)))


def install() -> None:
    """Replace the functions of `torch.cuda`, and NCCL by gloo."""
    replaced: dict[str, Callable[..., Any]] = {
        "is_available": lambda: GPUS > 0,
        "is_initialized": lambda: True,
        "device_count": lambda: GPUS,
        "get_arch_list": lambda: ["sm_90"],
        "current_device": current_device,
        "set_device": set_device,
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": lambda device=None: Stream(torch.device("cuda", _index(device)), stream_id=0),
        "set_stream": set_stream,
        "stream": stream_context,
        "graph_pool_handle": object,
        "CUDAGraph": Graph,
        "graph": graph,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda device=None: (Properties.major, Properties.minor),
        "get_device_properties": lambda device=None: Properties,
        "get_device_name": lambda device=None: Properties.name,
        "mem_get_info": lambda device=None: (_MEMORY_BYTES - _allocated(device), _MEMORY_BYTES),
        "memory_allocated": _allocated,
        "memory_reserved": _allocated,
        "max_memory_allocated": _allocated,
        "is_bf16_supported": lambda including_emulation=True: True,
        "can_device_access_peer": lambda device, peer: True,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: _seed(current_device(), seed),
        "manual_seed_all": _seed_all,
        "get_rng_state": _rng_state,
        "set_rng_state": _set_rng_state,
        "get_rng_state_all": lambda: [_rng_state(index) for index in range(GPUS)],
        "set_rng_state_all": _set_all,
        "set_sync_debug_mode": lambda mode: _LIBRARY.pretended_refuse_to_wait(int(mode in ("error", 2))),
        "_lazy_init": lambda: None,
        "_sleep": lambda cycles: None,
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    torch.version.cuda = "13.0"
    torch.UntypedStorage.clone = _clone  # type: ignore[method-assign, assignment]
    Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]
    if dist.is_available():
        _answer_nccl_by_gloo()


def _answer_nccl_by_gloo() -> None:
    real = dist.init_process_group

    def init_process_group(backend: str | None = None, *, device_id: object = None, **settings: Any) -> None:
        """Have gloo exchange what is in the memory of pretended GPUs, and nothing else, as NCCL."""
        real("gloo" if backend == "nccl" else backend, **settings)
        if backend == "nccl":
            _refuse_host_memory()

    dist.init_process_group = init_process_group  # type: ignore[assignment]
    dist.is_nccl_available = lambda: True


def _refuse_host_memory() -> None:
    """Have exchanges of the default group take CUDA tensors alone."""
    for name in ("all_reduce", "broadcast"):
        setattr(dist, name, _of_devices(getattr(dist, name)))


def _of_devices(real: Callable[..., Any]) -> Callable[..., Any]:
    def exchange(tensor: Tensor, *words: Any, **settings: Any) -> Any:
        if settings.get("group") is None and not tensor.is_cuda:
            raise RuntimeError("No backend type associated with device type cpu")
        return real(tensor, *words, **settings)

    return exchange
