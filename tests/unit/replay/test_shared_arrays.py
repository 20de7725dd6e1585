"""Arrays that several processes map: zeros that take no memory, read by those who were given the descriptor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.waiting import wait_until
from tidemill.errors import DataLoss
from tidemill.replay.sampling.shared_arrays import SharedArrays

pytestmark = pytest.mark.requires_linux

_BYTES, _FLOATS = np.dtype(np.uint8), np.dtype(np.float64)


@pytest.fixture
def kept() -> Iterator[SharedArrays]:
    """The arrays of the process that made them."""
    with closing(SharedArrays()) as arrays:
        yield arrays


def test_other_reads_what_is_written(kept: SharedArrays) -> None:
    """Array by array in the order asked for, before and after the file's size is final; it cannot write."""
    first, second = kept.reserve((3, 5), _BYTES), kept.reserve((2,), _FLOATS)
    first[:] = 7
    kept.seal()
    with closing(SharedArrays(os.dup(kept.descriptor))) as other:
        seen, seen_later = other.reserve((3, 5), _BYTES), other.reserve((2,), _FLOATS)
    second[:] = 1.5, -2.5
    assert seen.tolist() == [[7] * 5] * 3
    assert seen_later.tolist() == [1.5, -2.5]
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_no_memory_is_taken_before_it_is_written(kept: SharedArrays) -> None:
    """Of 64 GiB one byte takes one page, wherever /dev/shm has its limit; no name is left there."""
    before = set(os.listdir("/dev/shm"))
    large = kept.reserve((2**36,), _BYTES)
    assert os.fstat(kept.descriptor).st_blocks == 0
    large[2**35] = 1
    assert 0 < os.fstat(kept.descriptor).st_blocks * 512 <= 2**21  # a huge page at most
    wait_until(lambda: set(os.listdir("/dev/shm")) <= before, "no new name")  # other processes come and go there


def test_arrays_beyond_the_end_are_refused(kept: SharedArrays) -> None:
    """To read there would end the process without a word."""
    kept.reserve((10,), _FLOATS)
    with closing(SharedArrays(os.dup(kept.descriptor))) as other, pytest.raises(DataLoss, match=naming("byte")):
        other.reserve((10_000,), _FLOATS)


def test_size_is_final_once_sealed(kept: SharedArrays) -> None:
    """Whoever has the descriptor could otherwise cut the memory off under those who read it."""
    kept.reserve((10_000,), _FLOATS)
    kept.seal()
    for size in (0, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(kept.descriptor, size)


def test_arrays_outlive_the_descriptor(kept: SharedArrays) -> None:
    """Mappings alone keep the memory, so that no descriptor has to stay open."""
    array = kept.reserve((4,), _FLOATS)
    fetched = SharedArrays(os.dup(kept.descriptor))
    other = fetched.reserve((4,), _FLOATS)
    fetched.close()
    kept.close()
    kept.close()
    array[:] = 3.0
    assert other.tolist() == [3.0] * 4
    maps = Path("/proc/self/maps").read_text(encoding="ascii")
    assert "/memfd:tidemill-mirror" in maps
