"""Samples with items whose bytes make no sense: the rest is trained on, with all that belongs to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from tests.support.clock import Clock
from tests.support.learner_decoder import LearnerDecoder
from tests.support.learner_fakes import FakeAgent
from tests.support.naming import naming
from tidemill.config.table import TableSettings
from tidemill.errors import DataLoss, Unavailable
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.replay.codec import encode
from tidemill.replay.sampling.sample_decoder import importance_weights
from tidemill.services.learner.data.decoder import Batch
from tidemill.types import Codec, ColumnSpec

_SIGNATURE = (ColumnSpec("frame", "uint8", (8, 8), Codec.LZ4), ColumnSpec("reward", "float32", ()))
_GARBAGE = b"\xff" * 40
_CHUNKS, _STEPS = 6, 4


def sample_with(garbage: set[int]) -> SampledBatch:
    """Return two-step items that start at rows 0 to 22 of six chunks, some of which are garbage.

    Row r has reward r, and its item has key 100 + r and a probability that grows with r.
    """
    rows = np.arange(_CHUNKS * _STEPS)
    blocks = [
        encode(_SIGNATURE, {"frame": np.full((_STEPS, 8, 8), i, np.uint8), "reward": own.astype(np.float32)})
        for i, own in enumerate(rows.reshape(_CHUNKS, _STEPS))
    ]
    frames = [_GARBAGE if i in garbage else block for i, (block, _) in enumerate(blocks)]
    first = rows[:-1]
    return SampledBatch(
        keys=first.astype(np.uint64) + 100,
        probabilities=(first + 1.0) / 300,
        first_rows=first,
        lengths=np.full(len(first), 2),
        payloads=(),
        step_counts=np.full(_CHUNKS, _STEPS),
        params_versions=np.arange(_CHUNKS, dtype=np.uint64) + 1,
        blocks=(
            Blocks(b"".join(frames), np.array([len(frame) for frame in frames])),
            Blocks(b"".join(reward for _, reward in blocks), np.zeros(0, dtype=np.int64)),
        ),
        table_items=1000,
        total_weight=1.0,
        stored={},
    )


class Table:
    """Remembers what was removed."""

    def __init__(self) -> None:
        self.removed: list[int] = []

    def delete(self, keys: NDArray[np.uint64]) -> None:
        """Remove items."""
        self.removed += keys.tolist()


@pytest.fixture
def table() -> Table:
    """A table."""
    return Table()


def decoder_of(
    delete: Callable[[NDArray[np.uint64]], object],
    *,
    splits: int = 1,
    clock: Clock | None = None,
    recurrent_state_size: int = 0,
) -> LearnerDecoder:
    """Return a decoder for a prioritized table."""
    agent = FakeAgent()
    agent.recurrent_state_size = recurrent_state_size
    settings = TableSettings(sampler="prioritized", importance_sampling_exponent=1.0)
    return LearnerDecoder(agent, _SIGNATURE, delete, settings, splits=splits, clock=clock or Clock())


def check_aligned(batch: Batch) -> None:
    """Check that whatever belongs to an item is that of its key."""
    row = batch.keys.astype(np.int64) - 100
    assert batch.columns["reward"].tolist() == row.tolist()
    assert batch.params_versions.tolist() == (row // _STEPS + 1).tolist()
    expected, _ = importance_weights((row + 1.0) / 300, 1000, 1.0)
    np.testing.assert_allclose(batch.weight.numpy(), expected, rtol=1e-6)
    assert batch.largest_weight == pytest.approx((1000 * (row + 1.0) / 300).min() ** -1)


@pytest.mark.parametrize("garbage", [{0}, {2, 3}, {0, 1, 2, 4, 5}, {5}])
def test_items_of_a_corrupt_chunk_give_way_to_others(table: Table, garbage: set[int]) -> None:
    """The batch keeps its size; each item in it has its own reward, version and weight; the corrupt leave the table."""
    sample, decoder = sample_with(garbage), decoder_of(table.delete)
    corrupt = [r for r in range(23) if {r // _STEPS, (r + 1) // _STEPS} & garbage]
    with capture_logs() as lines:
        (batch,) = decoder.decode(sample, 7.0)
    assert len(batch.keys) == 23
    check_aligned(batch)
    sound = {100 + r for r in range(23)} - {100 + r for r in corrupt}
    assert set(batch.keys.tolist()) == sound
    times = np.unique(batch.keys, return_counts=True)[1]
    assert times.max() - times.min() <= 1
    assert table.removed == [100 + r for r in corrupt]
    assert decoder.corrupt.items == len(corrupt)
    (line,) = lines
    assert (line["items"], line["keys"]) == (len(corrupt), table.removed[:8])
    assert "column 'frame'" in line["why"]


def test_sample_without_corruption_is_as_it_was(table: Table) -> None:
    """Nothing is removed, said or moved."""
    with capture_logs() as lines:
        (batch,) = decoder_of(table.delete).decode(sample_with(set()), 7.0)
    assert batch.keys.tolist() == [100 + r for r in range(23)]
    check_aligned(batch)
    assert not table.removed
    assert not lines


def test_every_batch_of_a_sample_stays_aligned(table: Table) -> None:
    """22 items in two batches, of which some are corrupt: weights are scaled within each, by its own items."""
    sample = sample_with({1, 4}).take(np.arange(22))
    batches = decoder_of(table.delete, splits=2).decode(sample, 7.0)
    assert [len(batch.keys) for batch in batches] == [11, 11]
    for batch in batches:
        check_aligned(batch)


def test_sample_of_corrupt_items_gives_no_batch(table: Table) -> None:
    """And the next is decoded as if nothing had been."""
    decoder = decoder_of(table.delete)
    assert decoder.decode(sample_with(set(range(_CHUNKS))), 7.0) == []
    assert len(table.removed) == 23
    assert len(decoder.decode(sample_with(set()), 7.0)) == 1


@pytest.mark.parametrize("payload", [b"", b"abc", bytes(12)])
def test_item_with_a_payload_of_another_size_gives_way(table: Table, payload: bytes) -> None:
    """Its place is taken by one that brings its own memory, of two numbers here."""
    payloads = [np.array([r, -r], "<f4").tobytes() for r in range(23)]
    payloads[3] = payload
    sample = dataclasses.replace(sample_with(set()), payloads=tuple(payloads))
    (batch,) = decoder_of(table.delete, recurrent_state_size=2).decode(sample, 7.0)
    check_aligned(batch)
    row = batch.keys.astype(np.int64) - 100
    assert batch.columns["recurrent_state"].tolist() == [[r, -r] for r in row]
    assert table.removed == [103]


def test_corrupt_items_are_named_now_and_then() -> None:
    """One line for those of ten seconds, with the first keys; each is counted once, however often it was drawn."""
    clock = Clock()
    decoder = decoder_of(lambda keys: None, clock=clock)
    twice = sample_with({0}).take(np.array([0, 0, 1, 22]))
    with capture_logs() as lines:
        for moment in (0.0, 4.0, 9.9, 10.1, 12.0):
            clock.now_s = moment
            decoder.decode(twice, 7.0)
    assert [line["items"] for line in lines] == [2, 6]
    assert decoder.corrupt.items == 10


def test_training_goes_on_when_the_table_is_away() -> None:
    """What could not be removed is found again when it is drawn again."""

    def away(keys: NDArray[np.uint64]) -> None:
        raise Unavailable("no replay service")

    (batch,) = decoder_of(away).decode(sample_with({1}), 7.0)
    check_aligned(batch)


def test_sample_of_another_signature_is_still_an_error(table: Table) -> None:
    """No item of it could be trusted: a learner must not continue and empty the table."""
    sample = sample_with(set())
    short = dataclasses.replace(sample, blocks=(sample.blocks[0], Blocks(b"1234", sample.blocks[1].sizes)))
    with pytest.raises(DataLoss, match=naming("column 'reward' 4 96")):
        decoder_of(table.delete).decode(short, 7.0)
    assert not table.removed
