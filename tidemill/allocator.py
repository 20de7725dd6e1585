"""What the C library does with memory that is given back."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more
_KEPT_BYTES = 2**30


def keep_freed_memory() -> bool:
    """Let this process reuse the arrays it frees instead of returning them to the system; return whether it does.

    Batches of images are megabytes each, allocated and freed a hundred times a second. By default every one
    is mapped, faulted in page by page and unmapped again, which costs more than filling it. Up to 1 GiB of
    freed memory is kept, in one arena: what one thread frees, all can reuse. Only glibc offers this. To be called
    before threads are started.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    options = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: _KEPT_BYTES, _M_ARENA_MAX: 1}
    return all([mallopt(option, value) for option, value in options.items()])
