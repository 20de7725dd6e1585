"""The digest by which two runs are compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from tidemill.params.digest import describe_digest, params_digest


def test_digest_is_that_of_names_and_values() -> None:
    """It can be computed by hand: name, dtype, shape, bytes, in order of name."""
    first, second = np.array([[1.0, 2.0]], np.float32), np.array([3], np.int64)
    by_hand = hashlib.sha256(b"a <i8 (1,)\n" + second.tobytes() + b"b <f4 (1, 2)\n" + first.tobytes()).hexdigest()
    assert params_digest({"b": first, "a": second}) == by_hand
    assert params_digest({"a": second, "b": np.asfortranarray(first)}) == by_hand


def test_one_bit_makes_another_digest() -> None:
    """A value, a name and a shape count each."""
    values = np.zeros(2, np.float32)
    digests = [
        params_digest(state)
        for state in ({"a": values}, {"a": np.nextafter(values, 1)}, {"b": values}, {"a": values.reshape(1, 2)})
    ]
    assert len(set(digests)) == 4


def test_folder_without_versions_has_no_digest(tmp_path: Path) -> None:
    """Nothing is printed for a run that published nothing."""
    assert describe_digest(tmp_path) == ""
