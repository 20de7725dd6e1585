"""A few loops in C (kernel.c), for where NumPy or a foreign call for each block is too slow; all optional.

The library is built at installation where there is a C compiler. Everything works without it, by the Python code beside
each use, with the same results bit for bit. `TIDEMILL_KERNEL=0` leaves it unused (and unbuilt, at installation).
`TIDEMILL_KERNEL=1` at installation makes it an error that it cannot be built.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "TIDEMILL_KERNEL"
"""The environment variable that turns it off with the value 0."""

_FILE = Path(__file__).with_name("kernel.so")
_VERSION = 3  # of kernel.c
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


def load(file: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and why it is not used."""
    if os.environ.get(VARIABLE) == "0":
        return None, f"{VARIABLE}=0"
    if not file.exists():
        return None, "it was not built: installing found no C compiler"
    try:
        library = ctypes.CDLL(str(file))  # its calls let other threads run
        version = library.tidemill_kernel_version()
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"
    if version != _VERSION:
        return None, f"it was built from version {version} of its source, {_VERSION} is needed: install again"
    library.tidemill_decompress.argtypes = [_POINTER, _POINTER, _POINTER, _COUNT, _POINTER]
    library.tidemill_decompress.restype = None
    library.tidemill_decompress_rows.argtypes = [
        _POINTER,
        _POINTER,
        _POINTER,
        _COUNT,
        _POINTER,
        _COUNT,
        _POINTER,
        _POINTER,
    ]
    library.tidemill_decompress_rows.restype = None
    return library, ""


_library, reason = load(_FILE)
available = _library is not None
"""Whether the library is in use; `reason` says why not."""


def decompress(whole: int, partial: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Decompress the first bytes of many LZ4 blocks, in order; other threads run meanwhile.

    Args:
        whole: Address of LZ4_decompress_safe.
        partial: Address of LZ4_decompress_safe_partial.
        blocks: Address of each block, its size, the address to fill, bytes wanted and bytes of the whole block, [N, 5].
            The caller vouches for the addresses.

    Returns:
        Bytes written for each block, negative if it is corrupt, [N].
    """
    assert _library is not None
    blocks = np.ascontiguousarray(blocks, dtype=np.int64)
    written = np.empty(len(blocks), dtype=np.int64)
    _library.tidemill_decompress(whole, partial, blocks.ctypes.data, len(blocks), written.ctypes.data)
    return written


def decompress_rows(
    whole: int, partial: int, blocks: NDArray[np.int64], copies: NDArray[np.int64], row_bytes: int
) -> NDArray[np.int64]:
    """Decompress the first bytes of many LZ4 blocks and copy rows of each to their places; other threads run meanwhile.

    Each block is decompressed to the same memory: it stays in the cache, and only what is copied leaves it.

    Args:
        whole: Address of LZ4_decompress_safe.
        partial: Address of LZ4_decompress_safe_partial.
        blocks: Address of each block, its size, bytes wanted, bytes of the whole block, and how many of the copies are
            of it, [N, 5]. The caller vouches for the addresses.
        copies: Bytes before each row in its block, and the address to fill, [M, 2], those of a block after those of
            the one before. The caller vouches that the rows lie in what is wanted, and for the addresses.
        row_bytes: Of a row.

    Returns:
        Bytes decompressed of each block, negative if it is corrupt, [N]. Of one that is not as many as wanted no row
        is copied.
    """
    assert _library is not None
    blocks, copies = (np.ascontiguousarray(array, dtype=np.int64) for array in (blocks, copies))
    decompressed = np.empty(int(blocks[:, 2].max(initial=0)), dtype=np.uint8)
    written = np.empty(len(blocks), dtype=np.int64)
    _library.tidemill_decompress_rows(
        whole, partial, blocks.ctypes.data, len(blocks), copies.ctypes.data, row_bytes, decompressed.ctypes.data,
        written.ctypes.data)  # fmt: skip
    return written


class AppendLimits(ctypes.Structure):
    """Limits of an AppendRequest; kernel.c says what each of them counts."""

    _fields_ = [
        ("open_bytes", _COUNT),
        ("request_fields", _COUNT),
        ("data_fields", _COUNT),
        ("chunks", _COUNT),
        ("chunk_fields", _COUNT),
        ("blocks", _COUNT),
        ("items", _COUNT),
        ("list_bytes", _COUNT),
        ("plain_fields", _COUNT),
        ("lists", _COUNT),
    ]


def _open_append_fits() -> Any:  # noqa: ANN401 - ctypes gives foreign functions no type
    function = ctypes.PyDLL(str(_FILE)).tidemill_append_fits  # to let others run would cost more than the call
    function.argtypes = [ctypes.c_char_p, _COUNT, ctypes.POINTER(AppendLimits)]
    function.restype = ctypes.c_int32
    return function


_append_fits = _open_append_fits() if available else None


def append_fits(raw: bytes, most: AppendLimits) -> bool:
    """True if the bytes of an AppendRequest are proved to be within the limits.

    False says nothing: they may hold too much, be no AppendRequest, or be a good one that no client would write so.
    """
    assert _append_fits is not None
    return bool(_append_fits(raw, len(raw), most))


class SumTreeLoops:
    """`set` and `find` over the levels of a sum tree. They take microseconds and keep other Python threads waiting."""

    def __init__(self, levels: Sequence[NDArray[np.float64]]) -> None:
        """Take the arrays, leaves first, each C-contiguous [blocks, 16] and one entry above for every block."""
        library: Any = ctypes.PyDLL(str(_FILE))  # to let others run would cost more than the call
        self._set, self._find = library.tidemill_sum_tree_set, library.tidemill_sum_tree_find
        self._set.argtypes = [_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT]
        self._find.argtypes = [_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _POINTER]
        self._kept = (
            levels,
            np.array([level.ctypes.data for level in levels], dtype=np.int64),
            np.array([level.size for level in levels], dtype=np.int64),
            np.empty(levels[-1].size),
        )
        _, addresses, entries, cumulative = self._kept
        self._levels = (addresses.ctypes.data, entries.ctypes.data, len(levels))
        self._cumulative = cumulative.ctypes.data

    def set(self, slots: NDArray[np.integer], weights: NDArray[np.float64]) -> None:
        """Set weights [N] of slots [N], the last of repeated slots counting, and sum the levels above.

        Raises:
            IndexError: A slot lies outside of the leaves; nothing has changed.
        """
        slots = np.ascontiguousarray(slots, dtype=np.int64)
        weights = np.ascontiguousarray(np.broadcast_to(weights, slots.shape), dtype=np.float64)
        if self._set(*self._levels, slots.ctypes.data, weights.ctypes.data, slots.size):
            raise IndexError(f"a slot lies outside of the {self._kept[0][0].size} leaves")

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each target the first slot whose cumulative weight exceeds it, [N].

        Raises:
            IndexError: The tree is empty.
        """
        rest = np.array(targets, dtype=np.float64)  # a copy, which the search uses up
        slots = np.empty(rest.shape, dtype=np.int64)
        if self._find(*self._levels, self._cumulative, rest.ctypes.data, rest.size, slots.ctypes.data):
            raise IndexError("no slot has a weight")
        return slots
