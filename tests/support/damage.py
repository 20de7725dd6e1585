"""Damage to files on disk."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, *places: int) -> None:
    """Flip a bit of the bytes at some places of a file, or of the one in its middle."""
    data = bytearray(path.read_bytes())
    for place in places or (len(data) // 2,):
        data[place] ^= 1
    path.write_bytes(data)


def tear(path: Path) -> None:
    """Cut off the last two bytes of a file."""
    path.write_bytes(path.read_bytes()[:-2])


def halve(path: Path) -> None:
    """Cut off the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """Cut off all of a file."""
    path.write_bytes(b"")
