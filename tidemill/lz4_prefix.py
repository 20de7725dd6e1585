"""LZ4 blocks decompressed to where they are wanted, and no further than they are wanted."""

from __future__ import annotations

import ctypes
from typing import Protocol

import lz4.block
import numpy as np
from lz4.block import _block
from numpy.typing import NDArray

from tidemill import kernel


class Decompress(Protocol):
    """Fills memory with the first bytes of a block; the caller vouches for the addresses."""

    def __call__(self, source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
        """Write at most `wanted_bytes` at the address `target`; return how many, or a negative number.

        Args:
            source: Address of the block.
            source_bytes: Its size.
            target: Address to fill.
            wanted_bytes: How many bytes from the block's beginning, at most `raw_bytes`.
            raw_bytes: Size of the whole block when decompressed; a larger one is refused if all of it is wanted.
        """


def _open_library() -> ctypes.CDLL | None:
    """Return LZ4's own functions, which the Python binding carries but does not offer."""
    library = ctypes.CDLL(_block.__file__)  # its calls let other threads run
    names = ("LZ4_decompress_safe", "LZ4_decompress_safe_partial")
    return library if all(hasattr(library, name) for name in names) else None


def _from_library(library: ctypes.CDLL) -> Decompress:
    """Return the function on LZ4's own."""
    whole, partial = library.LZ4_decompress_safe, library.LZ4_decompress_safe_partial
    whole.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    partial.argtypes = [*whole.argtypes, ctypes.c_int]

    def decompress(source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
        if wanted_bytes == raw_bytes:
            return int(whole(source, target, source_bytes, wanted_bytes))
        return int(partial(source, target, source_bytes, wanted_bytes, wanted_bytes))

    return decompress


def through_binding(source: int, source_bytes: int, target: int, wanted_bytes: int, raw_bytes: int) -> int:
    """Decompress through the Python binding, which gives all of a block and copies it; see `Decompress`."""
    block = (ctypes.c_char * source_bytes).from_address(source)
    try:
        raw = lz4.block.decompress(block, uncompressed_size=raw_bytes)
    except lz4.block.LZ4BlockError:
        return -1
    count = min(len(raw), wanted_bytes)
    ctypes.memmove(target, raw, count)
    return count


def _addresses(library: ctypes.CDLL) -> tuple[int, int]:
    functions = (library.LZ4_decompress_safe, library.LZ4_decompress_safe_partial)
    whole, partial = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return whole, partial


_library = _open_library()
decompress_prefix: Decompress = through_binding if _library is None else _from_library(_library)
"""Writes the first bytes of a block to an address."""
addresses = None if _library is None else _addresses(_library)
"""Of LZ4's functions for whole blocks and for prefixes, for the kernel."""


def decompress_prefixes(blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Decompress many blocks in order, with the kernel in one call; return which gave what was wanted, [N].

    Each call from Python drops and takes back the interpreter's lock, which keeps decoding threads from each other.

    Args:
        blocks: For each block the arguments of `Decompress`, [N, 5].
    """
    if kernel.available and addresses is not None:
        return np.equal(kernel.decompress(*addresses, blocks), blocks[:, 3])
    return np.array([decompress_prefix(*block) == block[3] for block in blocks.tolist()], dtype=np.bool_)
