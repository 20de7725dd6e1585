"""Requirements of this build of torch on GPUs and their driver, and why those of this machine cannot be used."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tidemill import linux
from tidemill.errors import FatalError, GpuLost, GpuUnusable

DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each major version of CUDA; within one, older drivers run newer minor versions."""
CAPABILITIES = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
"""The lowest compute capability that each major version of CUDA compiles for."""
_GIB = 2**30
_LOADED_DRIVER = linux.PROC / "driver/nvidia/version"


def driver_version(loaded: Path = _LOADED_DRIVER) -> str:
    """Return the version of the NVIDIA driver that the kernel has loaded, as 580.65.06; empty if it does not say."""
    try:
        first = loaded.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", first)
    return found[0] if found else ""


def needed_driver() -> int | None:
    """Return the oldest driver that this build of torch works with, by its major version; None if it is not known."""
    cuda = torch.version.cuda
    return DRIVERS.get(int(cuda.partition(".")[0])) if cuda else None


def needed_capability() -> tuple[int, int] | None:
    """Return the lowest compute capability that this build has kernels for; None for a build without CUDA."""
    cuda = torch.version.cuda
    if not cuda:
        return None
    built_for = [re.fullmatch(r"sm_(\d+)(\d)[a-z]?", arch) for arch in torch.cuda.get_arch_list()]
    capabilities = [(int(arch[1]), int(arch[2])) for arch in built_for if arch]
    return min(capabilities) if capabilities else CAPABILITIES.get(int(cuda.partition(".")[0]))


def needs() -> str:
    """Return the requirements of this build of torch, in words."""
    driver, capability = needed_driver(), needed_capability()
    words = f"torch {torch.__version__} with CUDA {torch.version.cuda} needs "
    words += f"driver {driver} or newer" if driver else "a driver for that CUDA"
    return words + (f" and compute capability {capability[0]}.{capability[1]} or newer" if capability else "")


def count() -> int:
    """Return the number of GPUs that this process can compute on; initialise CUDA if there are any.

    Before that torch counts the cards that the driver's management library lists. Of cards in slices (MIG) CUDA gives a
    process one slice, however many there are. After this call the process can fork no other that uses CUDA.
    """
    if not torch.cuda.is_available():
        return 0
    torch.cuda.init()
    return torch.cuda.device_count()


def why_unusable() -> str:
    """Return why torch can use no GPU under the driver here; empty if it can, or if there is no driver or no GPU.

    The driver's management library lists GPUs that a CUDA library for a newer driver cannot use: counting them is no
    proof that one works. Where that library fails, torch counts 0 and warns, once in a process.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        listed = torch.cuda.device_count()
        if listed and torch.cuda.is_available():
            return ""
    said = str(caught[-1].message).partition("\n")[0] if caught else "nothing"
    if listed == 0:
        return f"torch finds no GPU: {said}" if caught else ""
    have = driver_version() or "of an unknown version"
    return f"torch can use none of the {listed} GPUs here: the driver is {have}, and {needs()} (torch says: {said})"


def check_usable(wanted: str, instead: str) -> None:
    """Refuse what the user asks for, if torch can use no GPU under the driver here.

    Args:
        wanted: What needs a GPU, as `learner.device is 'cuda'`.
        instead: What to do on a machine that is to compute on its CPU.

    Raises:
        GpuUnusable: Says which driver is there and which one is needed, or what torch says of it.
    """
    if why := why_unusable():
        remedy = f"update the driver, reboot, install a build of torch for an older CUDA, or {instead}"
        raise GpuUnusable(f"{wanted}, but {why}; {remedy}")


def why_without_kernels(device: torch.device) -> str:
    """Return why the first operation on a GPU that torch can use would fail; empty if this build has kernels for it."""
    needed = needed_capability()
    if needed is None or (has := torch.cuda.get_device_capability(device)) >= needed:
        return ""
    name = torch.cuda.get_device_name(device)
    return f"{device} is a {name} of compute capability {has[0]}.{has[1]}, and {needs()}"


@contextmanager
def retried_if_lost(run_folder: Path) -> Iterator[None]:
    """Have a process of a run that has trained end as one to be started again, where it has no GPU that it can use.

    Such a run had one. Its driver may be reset, or the process may be started again on another machine, while a wrong
    setting ends the run.

    Args:
        run_folder: The run's.

    Raises:
        GpuLost: In place of GpuUnusable, if the run has a checkpoint.
    """
    try:
        yield
    except GpuUnusable as error:
        if not (run_folder / "checkpoints").exists():
            raise
        raise GpuLost(str(error)) from error


_LEARNS_WITH_LESS = "choose a smaller agent.batch_size, set learner.mirror_device host"


@contextmanager
def full_gpu_explained(device: torch.device | None = None, with_less: str = _LEARNS_WITH_LESS) -> Iterator[None]:
    """Have a process whose GPU is full end with the memory that is free and what to do, in one line.

    Args:
        device: The GPU; None: the calling thread's current one.
        with_less: How the process takes less memory, in words; that of a learner if not given.

    Raises:
        FatalError: In place of torch's errors that memory was refused to it, or to CUDA itself.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "CUDA error: out of memory" not in str(error):
            raise
        raise FatalError(
            f"the GPU is full: {_free_memory(device)}; {with_less}, or take another GPU (`nvidia-smi` lists the "
            "programs on each)"
        ) from error


def _free_memory(device: torch.device | None) -> str:
    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    except RuntimeError:  # it opens a context, which itself needs memory
        return "it has too little free memory for CUDA to start"
    return f"{free_bytes / _GIB:.1f} of {total_bytes / _GIB:.1f} GiB are free"
