"""LZ4 blocks decompressed to where they are wanted, and no further than they are wanted."""

from __future__ import annotations

import ctypes
from typing import Protocol

import lz4.block
from lz4.block import _block


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


def _from_library() -> Decompress | None:
    """Return the function on LZ4's own, which the Python binding carries but does not offer."""
    library = ctypes.CDLL(_block.__file__)  # its calls let other threads run
    try:
        whole, partial = library.LZ4_decompress_safe, library.LZ4_decompress_safe_partial
    except AttributeError:
        return None
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


decompress_prefix: Decompress = _from_library() or through_binding
"""Writes the first bytes of a block to an address."""
