"""The devices that settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tidemill import gpus
from tidemill.errors import ConfigError, GpuUnusable
from tidemill.logger import LateLogger

_log = LateLogger()


def named_device(
    setting: str, name: str, *, gpu: int = 0, wraps: bool = False, falls_back: bool = True
) -> torch.device:
    """Return the device of a setting; a GPU always with its index, as `torch.cuda.set_device` needs it.

    Args:
        setting: Its name, for errors.
        name: `cpu`, `cuda:N`, `cuda` or `auto`: a GPU if there is one, and the CPU otherwise.
        gpu: Index of the GPU that `cuda` and `auto` take.
        wraps: Count that index around the GPUs here, so that it may be any.
        falls_back: Whether `auto` is the CPU where this build of torch has no kernels for the GPU.

    Raises:
        ConfigError: There is no such device.
        GpuUnusable: It is not on this machine, or this build of torch cannot use it.
    """
    wanted = _automatic() if name == "auto" else name
    if wanted.startswith("cuda"):
        gpus.check_usable(f"{setting} is {name!r}", f"set {setting} to cpu")
    try:
        device = torch.device(f"cuda:{gpu}" if wanted == "cuda" else wanted)
    except RuntimeError as error:
        raise ConfigError(f"{setting} is {name!r}, allowed: auto, cpu, cuda or cuda:N") from error
    if device.type != "cuda":
        return device
    count = gpus.count()
    if wraps and wanted == "cuda":
        device = torch.device("cuda", gpu % max(count, 1))
    if device.index >= count:
        raise GpuUnusable(
            f"{setting} is {name!r}, but torch finds {count} GPUs here, not {device}; use one that exists, or cpu"
        )
    if not (why := gpus.why_without_kernels(device)):
        return device
    if name == "auto" and falls_back:
        return torch.device(_cpu_because(why))
    raise GpuUnusable(
        f"{setting} is {name!r}, but {why}; choose another GPU, install a build of torch for an older CUDA, or set "
        f"{setting} to cpu"
    )


def _automatic() -> str:
    if why := gpus.why_unusable():
        return _cpu_because(why)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _cpu_because(why: str) -> str:
    _log.warning("cannot use the GPU, computing on the CPU", why=why)
    return "cpu"


def flush_denormals() -> None:
    """Have torch take numbers below 1.2e-38 for zero, in the calling thread and those that it starts from then on.

    Adam's moments of a weight that gets no gradient, as of a unit that is never active, fade to such numbers and stay
    there: nine tenths of the smallest round up to it again. A processor is slow with them: where they are a quarter of
    the first moments a step takes four times as long (benchmarks/denormals.py). They change no weight: a step adds
    epsilon to the root of the second moment before it divides by it.
    """
    torch.set_flush_denormal(True)


def use_device(device: torch.device) -> None:
    """Make a GPU the calling thread's current one; do nothing for a CPU.

    Every thread that touches a GPU does so first. Threads begin with the first GPU, and torch goes back to a thread's
    own when it leaves a stream: that would open a context there, half a gigabyte of a GPU that others use.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Have what the calling thread does within the context go by a stream, whose GPU becomes the thread's."""
    use_device(stream.device)
    with torch.cuda.stream(stream):
        yield
