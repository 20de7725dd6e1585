"""From a raw sample to batches: which item goes where, and with which weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.learner_decoder import LearnerDecoder
from tests.support.learner_fakes import FakeAgent
from tests.support.raw_samples import sample
from tidemill.config.table import TableSettings
from tidemill.replay import codec
from tidemill.replay.batch import SampledBatch
from tidemill.services.learner.data.decoder import Batch
from tidemill.types import ColumnSpec, Signature

_SIGNATURE = (ColumnSpec("reward", "float32", ()),)
_REWARDS = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]


def _decoder(agent: FakeAgent | None = None, settings: TableSettings | None = None, **options: Any) -> LearnerDecoder:  # noqa: ANN401
    def none(keys: object) -> None:
        pytest.fail(f"{keys} are not corrupt")

    return LearnerDecoder(agent or FakeAgent(), _SIGNATURE, none, settings or TableSettings(), **options)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples whose row r has reward `_REWARDS[r]`, without going through blocks of bytes."""

    def decode(signature: Signature, found: SampledBatch, length: int, *, later: str) -> codec.DecodedBatch:
        assert (signature, length, later) == (_SIGNATURE, 2, "")
        index = found.first_rows[:, None] + np.arange(length)
        return codec.DecodedBatch({"reward": np.array([*_REWARDS, 0.0], np.float32)}, index)

    monkeypatch.setattr(codec, "decode", decode)


def _decode(settings: TableSettings, *, splits: int, learner_steps: int = 0, **options: int) -> list[Batch]:
    decoder = _decoder(settings=settings, splits=splits, learner_steps=learner_steps, options=options)
    return decoder.decode(sample(_REWARDS), received_at=7.0)


def test_one_batch_keeps_the_order_of_its_sample() -> None:
    """Keys and columns stay side by side."""
    (batch,) = _decode(TableSettings(), splits=1)
    assert batch.columns["reward"].tolist() == _REWARDS
    assert batch.keys.tolist() == [1, 2, 3, 4, 5, 6]
    assert (batch.replay.table_items.tolist(), batch.replay.received_at) == ([10] * 6, 7.0)
    assert batch.params_versions.tolist() == [4.0] * 6


def test_items_are_dealt_out_to_batches_in_turn() -> None:
    """Two batches get every other item, so that neither is the lower half of a sampler's strata."""
    first, second = _decode(TableSettings(), splits=2)
    assert first.keys.tolist() == [1, 3, 5]
    assert first.columns["reward"].tolist() == [10, 12, 14]
    assert second.keys.tolist() == [2, 4, 6]
    assert second.columns["reward"].tolist() == [11, 13, 15]
    assert set(first.columns) == {"reward"}


@pytest.mark.parametrize("sampler", ["uniform", "fifo"])
def test_other_samplers_have_weight_one(sampler: str) -> None:
    """Only a prioritized sampler is corrected for."""
    (batch,) = _decode(TableSettings(sampler=sampler), splits=1)  # type: ignore[arg-type]
    assert batch.weight.tolist() == [1.0] * 6


def test_weights_are_scaled_within_each_batch() -> None:
    """With beta = 1 the probabilities 0.1, 0.3, 0.5 give 1, 1/3, 1/5; and 0.2, 0.4, 0.6 give 1, 1/2, 1/3."""
    settings = TableSettings(sampler="prioritized", importance_sampling_exponent=1.0)
    first, second = _decode(settings, splits=2)
    assert first.weight.tolist() == pytest.approx([1, 1 / 3, 1 / 5])
    assert second.weight.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert (first.largest_weight, second.largest_weight) == pytest.approx((1.0, 0.5))


def test_each_item_has_the_version_of_its_own_chunk() -> None:
    """Chunks of 2, 1 and 4 rows by versions 3, 5 and 9: the rows 0 to 5 are theirs in that order."""
    found = dataclasses.replace(
        sample(_REWARDS), step_counts=np.array([2, 1, 4]), params_versions=np.array([3, 5, 9], np.uint64)
    )
    decoder = _decoder()
    (batch,) = decoder.decode(found, received_at=7.0)
    assert batch.params_versions.tolist() == [3, 3, 5, 9, 9, 9]


def test_recurrent_states_of_items_go_with_them() -> None:
    """Two numbers per item, dealt out like the items; where the policy has no state there is no such column."""
    found = dataclasses.replace(sample(_REWARDS), payloads=tuple(np.array([i, -i], "<f4").tobytes() for i in range(6)))
    agent = FakeAgent()
    agent.recurrent_state_size = 2
    decoder = _decoder(agent, splits=2)
    first, second = decoder.decode(found, received_at=7.0)
    assert first.columns["recurrent_state"].tolist() == [[0, 0], [2, -2], [4, -4]]
    assert second.columns["recurrent_state"].tolist() == [[1, -1], [3, -3], [5, -5]]


def test_exponent_follows_the_learner_steps() -> None:
    """Half-way from 0 to 1 it is 1/2: probabilities 0.1 and 0.4 give 1 and 1/2."""
    settings = TableSettings(
        sampler="prioritized",
        importance_sampling_exponent=0.0,
        importance_sampling_exponent_final=1.0,
        importance_sampling_steps=100,
    )
    (batch,) = _decode(settings, splits=1, learner_steps=50)
    assert batch.weight[[0, 3]].tolist() == pytest.approx([1, 1 / 2])


def test_frames_are_shared_by_the_batches_of_a_sample() -> None:
    """An agent that stacks later gets all rows with each batch; its other columns are dealt out."""

    class Stacking(FakeAgent):
        def decode(self, columns: Mapping[str, np.ndarray], index: np.ndarray) -> dict[str, np.ndarray]:
            return {"frames": columns["reward"], "observation_rows": index[:, 0]}

    decoder = _decoder(Stacking(), splits=2)
    first, second = decoder.decode(sample(_REWARDS), received_at=7.0)
    assert first.columns["frames"].tolist() == second.columns["frames"].tolist() == [*_REWARDS, 0.0]
    assert second.columns["observation_rows"].tolist() == [1, 3, 5]


class _Mirror:
    """Keeps the rows of `_REWARDS`; written over once so many batches were gathered."""

    elsewhere_bytes = 0

    def __init__(self, intact: int) -> None:
        self.columns = {"reward": np.array([*_REWARDS, 0.0], np.float32)}
        self._intact = intact

    def corrupt_chunks(self, found: SampledBatch) -> np.ndarray:
        return np.empty(0, np.int64)

    def rows_of(self, found: SampledBatch, length: int) -> np.ndarray:
        return found.first_rows[:, None] + np.arange(length)

    def is_intact(self, found: SampledBatch) -> bool:
        self._intact -= 1
        return self._intact >= 0


def _gathered(mirror: _Mirror, at_once_bytes: int, **more: bool) -> list[dict[str, object]]:
    settings = TableSettings(sampler="prioritized")
    found = dataclasses.replace(sample(_REWARDS), probabilities=np.arange(1, 7) / 21)
    options = {"at_once_bytes": at_once_bytes, **more}
    decoder = _decoder(settings=settings, splits=3, mirror=mirror, options=options)
    return [
        {
            "keys": batch.keys.tolist(),
            "weight": batch.weight.tolist(),
            "largest": batch.largest_weight,
            "reward": batch.columns["reward"].tolist(),
            "versions": batch.params_versions.tolist(),
        }
        for batch in decoder.decode(found, received_at=7.0)
    ]


@pytest.mark.parametrize("at_once_bytes", [1, 2 * 2 * 2 * 4])  # one batch, and two of two items of two floats
def test_large_batches_are_gathered_from_a_mirror_one_by_one(at_once_bytes: int) -> None:
    """They equal those that are gathered together, weights included."""
    together = _gathered(_Mirror(intact=1), 2**20)
    assert [batch["keys"] for batch in together] == [[1, 4], [2, 5], [3, 6]]
    assert _gathered(_Mirror(intact=3), at_once_bytes) == together


@pytest.mark.parametrize("at_once_bytes", [1, 2 * 2 * 2 * 4])  # one batch, and two of two items of two rows
def test_large_batches_are_decoded_one_by_one(at_once_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They equal those that are decoded together, and no array is as large as all of them."""
    settings = TableSettings(sampler="prioritized", importance_sampling_exponent=1.0)
    together = _decode(settings, splits=3)
    decoded: list[int] = []
    inner = codec.decode

    def counted(signature: Signature, found: SampledBatch, length: int, *, later: str) -> codec.DecodedBatch:
        decoded.append(len(found.keys))
        return inner(signature, found, length, later=later)

    monkeypatch.setattr(codec, "decode", counted)
    apart = _decode(settings, splits=3, decoded_at_once_bytes=at_once_bytes)
    assert decoded == ([2, 2, 2] if at_once_bytes == 1 else [4, 2])
    for left, right in zip(apart, together, strict=True):
        assert left.keys.tolist() == right.keys.tolist()
        assert left.weight.tolist() == right.weight.tolist()
        assert left.largest_weight == right.largest_weight
        assert left.columns["reward"].tolist() == right.columns["reward"].tolist()
        assert left.params_versions.tolist() == right.params_versions.tolist()


def test_batches_that_were_gathered_before_a_mirror_was_written_over_stay() -> None:
    """Of three, the first two were read in time."""
    found = _gathered(_Mirror(intact=2), 1)
    assert [batch["keys"] for batch in found] == [[1, 4], [2, 5]]


def test_sample_that_is_drawn_again_gives_no_batch_before() -> None:
    """In lock-step, which has no other sample in place of what is missing."""
    assert _gathered(_Mirror(intact=2), 1, whole_samples=True) == []
    assert len(_gathered(_Mirror(intact=3), 1, whole_samples=True)) == 3
