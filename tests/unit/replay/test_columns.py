"""Batches as structs of arrays: every column moves with its item, none by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.encoded_batches import batch_of
from tidemill.replay.batch import SampledBatch
from tidemill.replay.columns import ItemColumns, Per, columns_of, joined, per_item, split, values_of
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.v1 import replay_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Marked(ItemColumns):
    """Batches with a column more than all others."""

    marks: NDArray[np.int64] = field(metadata=per_item("i8"))
    rows: dict[str, Any] = field(metadata=per_item())


def marked(*marks: int, payloads: bool = True) -> Marked:
    """Return items all of whose columns tell the same mark."""
    values = np.array(marks, dtype=np.int64)
    return Marked(
        keys=values.astype(np.uint64),
        probabilities=values / 10.0,
        lengths=values,
        payloads=tuple(bytes([mark]) for mark in marks) if payloads else (),
        marks=values,
        rows={"a": values[:, None] * np.array([1, 2])},
    )


def check(batch: Marked, *marks: int) -> None:
    """Check that a batch has these items, whole."""
    expected = values_of(marked(*marks), Per.ITEM)
    for name, value in values_of(batch, Per.ITEM).items():
        np.testing.assert_equal(value, expected[name], name)


def test_all_columns_of_an_item_move_together() -> None:
    """Those that a class adds, dicts of arrays and bytes as well; one that is not there stays away."""
    batch = marked(3, 1, 4, 5)
    check(batch.take(np.array([2, 2, 0])), 4, 4, 3)
    check(batch.take(np.array([True, False, False, True])), 3, 5)
    check(batch.take(slice(1, 3)), 1, 4)
    for shift in range(9):
        check(batch.roll(shift), *np.roll([3, 1, 4, 5], shift).tolist())
    check(Marked(**joined([batch, marked(9)], Per.ITEM)), 3, 1, 4, 5, 9)
    assert batch.take(slice(2)).ages is None


def test_batch_prints_shapes_instead_of_values() -> None:
    """A whole batch fits a screen of a notebook or debugger; columns without values are left out."""
    assert repr(marked(3, 1)) == (
        "Marked(keys=uint64[2], probabilities=float64[2], lengths=int64[2], payloads=tuple[2], marks=int64[2], "
        "rows={'a': int64[2, 2]})"
    )
    assert repr(batch_of((), [(), ()], [2, 3], [(0, 2)])).startswith("SampledBatch(keys=uint64[1], ")


def test_batch_is_split_into_equal_parts_with_all_of_their_columns() -> None:
    """Torch's tensors as well."""
    torch = pytest.importorskip("torch")
    batch = replace(marked(3, 1, 4, 5), rows={"a": torch.arange(8).reshape(4, 2)})
    left, right = (Marked(**part) for part in split(values_of(batch, Per.ITEM), 2))
    assert left.keys.tolist() == [3, 1]
    assert right.payloads == (b"\4", b"\5")
    assert [part.rows["a"].tolist() for part in (left, right)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert left.ages is None


def test_column_that_a_part_lacks_is_missing_from_the_whole() -> None:
    """Payloads alone are then empty, since an item need not have one."""
    whole, bare = replace(marked(1), ages=np.array([7])), marked(2, 3, payloads=False)
    found = joined([whole, bare], Per.ITEM)
    assert found["ages"] is None
    assert found["payloads"] == (b"\x01", b"", b"")


def test_batches_without_their_chunks_keep_what_the_others_hold() -> None:
    """Items behind a chunk that goes move up by its rows."""
    batch = replace(batch_of((), [(), (), ()], [2, 3, 4], [(0, 2), (1, 2), (5, 3), (6, 1)]), slots=np.array([7, 8, 9]))
    left = batch.without_chunks(np.array([False, True, False]))
    assert left.first_rows.tolist() == [0, 2, 3]
    assert left.keys.tolist() == [1, 3, 4]
    assert left.step_counts.tolist() == [2, 4]
    assert left.slots is not None
    assert left.slots.tolist() == [7, 9]


def test_each_column_of_an_item_is_a_field_of_the_contract() -> None:
    """So that the wire needs no list of them."""
    fields = pb.SampleResponse.DESCRIPTOR.fields_by_name
    assert {column.name for column in columns_of(SampledBatch, Per.ITEM)} <= set(fields)


def test_users_get_every_column_of_an_item() -> None:
    """What a server says of an item reaches who trains on it."""
    of_all = {column.name for column in columns_of(ItemColumns, Per.ITEM)}
    assert of_all <= {column.name for column in columns_of(ReplayBatch, Per.ITEM)}
