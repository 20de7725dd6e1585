"""History of all outputs of an actor's policies since the run began, on disk: enough to replay every step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FatalError

_CRC_BYTES = 4

Columns = Mapping[str, NDArray[Any]]
"""Of one round, by name, each [K, N, ...]: K steps of N environments."""


@dataclass(frozen=True)
class _Layout:
    """The columns of a round and their bytes."""

    names: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, columns: Columns) -> _Layout:
        names = tuple(sorted(columns))
        return cls(names, tuple(columns[n].dtype for n in names), tuple(columns[n].shape for n in names))

    @classmethod
    def parse(cls, line: bytes) -> _Layout:
        text, _, crc = line.rstrip(b"\n").rpartition(b" ")
        if crc != _hex(text):
            raise ValueError("its first line does not match its CRC")
        rows = json.loads(text)
        return cls(
            tuple(name for name, _, _ in rows),
            tuple(np.dtype(dtype) for _, dtype, _ in rows),
            tuple(tuple(shape) for _, _, shape in rows),
        )

    def line(self) -> bytes:
        rows = zip(self.names, (dtype.str for dtype in self.dtypes), self.shapes, strict=True)
        text = json.dumps([list(row) for row in rows]).encode()
        return text + b" " + _hex(text) + b"\n"

    @property
    def sizes(self) -> list[int]:
        return [dtype.itemsize * math.prod(shape) for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]

    def unpack(self, data: bytes) -> dict[str, NDArray[Any]]:
        columns, start = {}, 0
        for name, dtype, shape, size in zip(self.names, self.dtypes, self.shapes, self.sizes, strict=True):
            columns[name] = np.frombuffer(data[start : start + size], dtype).reshape(shape)
            start += size
        return columns


class History:
    """One file, to which a record with its CRC-32 is added for each round; the first line says which columns it has.

    A record that a killed process left unfinished is removed when the file is opened. Nothing waits for the disk: what
    was written survives the process, not a loss of power.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it.

        Raises:
            FatalError: Its first line is corrupt.
        """
        path.touch()
        self._path, self._file = path, path.open("r+b")
        line = self._file.readline()
        try:
            self._layout = _Layout.parse(line) if line.endswith(b"\n") else None
        except (ValueError, TypeError) as error:
            self._file.close()
            raise self._corrupt(str(error)) from error
        self._start = len(line) if self._layout is not None else 0
        self.rounds = 0
        """Rounds that are recorded."""
        if self._layout is not None:
            self.rounds = (path.stat().st_size - self._start) // self._record_bytes
        self._file.truncate(self._end)

    def read(self, number: int) -> dict[str, NDArray[Any]]:
        """Return a recorded round, 1 .. rounds.

        Raises:
            FatalError: It is corrupt.
        """
        assert self._layout is not None
        self._file.seek(self._start + (number - 1) * self._record_bytes)
        record = self._file.read(self._record_bytes)
        data = record[:-_CRC_BYTES]
        if record[-_CRC_BYTES:] != _crc(data, number):
            raise self._corrupt(f"round {number} does not match its CRC")
        return self._layout.unpack(data)

    def write(self, columns: Columns) -> None:
        """Add the next round; its columns are as those before."""
        self._file.seek(self._end)
        if self._layout is None:
            self._layout = _Layout.of(columns)
            line = self._layout.line()
            self._file.write(line)
            self._start = len(line)
        assert self._layout == _Layout.of(columns), "the policy's outputs have changed"
        data = b"".join(np.ascontiguousarray(columns[name]).tobytes() for name in self._layout.names)
        self._file.write(data + _crc(data, self.rounds + 1))
        self._file.flush()
        self.rounds += 1

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    @property
    def _end(self) -> int:
        return self._start + (self.rounds * self._record_bytes if self.rounds else 0)

    @property
    def _record_bytes(self) -> int:
        assert self._layout is not None
        return sum(self._layout.sizes) + _CRC_BYTES

    def _corrupt(self, why: str) -> FatalError:
        return FatalError(f"{self._path} is corrupt: {why}; start the run from scratch")


def _crc(data: bytes, number: int) -> bytes:
    """Return the CRC of a round's record, which is not that of the same bytes in another place."""
    return crc32(data, number).to_bytes(_CRC_BYTES, "little")


def _hex(text: bytes) -> bytes:
    return b"%08x" % crc32(text)
