"""Arrays in memory that several processes map, found through one file descriptor and by no name."""

from __future__ import annotations

import math
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import linux
from tidemill.errors import DataLoss

_NAME = "tidemill-mirror"  # in /proc/PID/smaps alone


def reserve_private(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros of this process that take no memory before they are written, not even as a promise of the system."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | linux.MAP_NORESERVE)
    return _array(memory, shape, dtype)


class SharedArrays:
    """Reserves arrays one after the other; whoever has the descriptor and asks for the same ones gets the same memory.

    The system frees the memory with the last process that has it, however that ends. /dev/shm and its limit play no
    part. What is not written takes no memory.

    Attributes:
        descriptor: Of the file, to be handed to other processes.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Make a file, or take one that another process has made, for reading only.

        Args:
            descriptor: The file of the other process, from now on this object's to close; None for a new one.

        Raises:
            OSError: The system makes no such file, as none but Linux does.
        """
        self._reads = descriptor is not None
        self.descriptor = linux.memory_file(_NAME) if descriptor is None else descriptor
        self._taken = 0

    def reserve(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the next array: zeros, or what the process that made the file writes to it.

        Raises:
            DataLoss: The file is not as large as the arrays asked for.
            OSError: There is no address space for it.
        """
        size = max(math.prod(shape) * dtype.itemsize, 1)
        start, self._taken = self._taken, self._taken + size + -size % mmap.ALLOCATIONGRANULARITY
        if not self._reads:
            os.ftruncate(self.descriptor, self._taken)
        elif os.fstat(self.descriptor).st_size < self._taken:  # reading beyond its end would end the process
            raise DataLoss(f"shared memory ends before byte {self._taken}")
        access = mmap.PROT_READ if self._reads else mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(self.descriptor, size, mmap.MAP_SHARED | linux.MAP_NORESERVE, access, offset=start)
        return _array(memory, shape, dtype)

    def seal(self) -> None:
        """Let no process change the file's size any more."""
        linux.seal(self.descriptor)

    def close(self) -> None:
        """Give up the descriptor; arrays stay. May be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _array(memory: mmap.mmap, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(memory, dtype=dtype, count=math.prod(shape)).reshape(shape)
