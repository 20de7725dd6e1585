"""Decodes one raw sample into the batches of a few updates."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.config.sections import LearnerConfig
from tidemill.config.table import TableSettings
from tidemill.replay import codec
from tidemill.replay.sampling.batch import SampledBatch
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.interface import Agent, observation_columns_of
from tidemill.rl.transitions import FRAMES, ROWS
from tidemill.services.learner import metrics
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.data.corrupt_items import CorruptItemFilter, Delete
from tidemill.services.learner.data.device import DeviceBatch, DevicePrefetcher
from tidemill.services.learner.data.device_rows import with_row_numbers
from tidemill.services.learner.data.importance_weights import (
    importance_sampling_exponent,
    importance_weights,
    largest_weight,
)
from tidemill.services.learner.data.kept_rows import KeptRows
from tidemill.types import OBSERVATION, Codec, Signature

STATE_DTYPE = np.dtype("<f4")
"""Of the numbers in an item's payload: the recurrent state of the policy at its start."""

RECURRENT_STATE = "recurrent_state"
"""Column of it in the batches of an agent that has one, float32 [B, M]."""

_AT_ONCE_BYTES = 8 * 2**20
"""Of the batches that are gathered from a mirror at once: larger ones take new memory from the system each time."""

_DECODED_AT_ONCE_BYTES = 16 * 2**20
"""Of the batches whose blocks are decoded at once, if every item has rows of its own.

Beyond 32 MiB the C library keeps no freed memory (mallopt(3), M_MMAP_THRESHOLD): each page of each array is then taken
from the system again, one thread at a time.
"""

_WEIGHT = "importance_weight"
_DECODE_S, _COPY_S = (metrics.STAGE_SECONDS.labels(stage) for stage in ("decode", "copy"))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The input of one update.

    Attributes:
        columns: What `Agent.decode` returned, on the device, each [B, ...] except the `frames` that batches of one
            sample may share; and `recurrent_state` if the items have one.
        weight: Importance weights, float32 [B].
        keys: Keys of the items, uint64 [B].
        device_batch: The copy to the device; wait for it before use.
        table_items: Items in the table when it was drawn.
        params_versions: Version of the parameters that chose each item's first action, float64 [B].
        received_at: When it arrived, by the clock given.
        largest_weight: The largest importance weight before they were divided by it; other ranks have another.
    """

    columns: dict[str, Tensor]
    weight: Tensor
    keys: NDArray[np.uint64]
    device_batch: DeviceBatch
    table_items: int
    params_versions: NDArray[np.float64]
    received_at: float
    largest_weight: float = 1.0


class Decoder:
    """Decodes samples of `splits * B` items into `splits` batches of B. Safe to call from several threads."""

    def __init__(
        self,
        agent: Agent,
        signature: Signature,
        table: TableSettings,
        counters: Counters,
        prefetcher: DevicePrefetcher,
        corrupt: CorruptItemFilter,
        *,
        splits: int,
        mirror: TableMirror | None = None,
    ) -> None:
        self._agent, self._signature, self._table = agent, signature, table
        self._counters, self._prefetcher, self._corrupt, self._splits = counters, prefetcher, corrupt, splits
        self._mirror = mirror
        self._observations = observation_columns_of(agent)
        self._gathered = self._observations if prefetcher.has_observations else ()
        is_later = mirror is None and bool(self._observations) and _is_compressed(signature)
        self._decoded_later = OBSERVATION if is_later else ""  # when the agent has said which rows go where

    def decode(self, sample: SampledBatch, received_at: float) -> list[Batch]:
        """Return the batches of a sample, all of the same size; what is small is done once for all of them.

        Corrupt items are left out. Where all are, no batch is returned, nor where a mirror's rows were written over.

        Raises:
            DataLoss: The sample is not one of this table's signature.
        """
        order = _dealt(sample, self._splits)
        batches: list[Batch] = []
        at_once = self._decoded_at_once(sample)
        for first in range(0, self._splits, at_once):
            piece = order[first : first + at_once]
            part = sample if len(piece) == self._splits else sample.take(piece.T.ravel())
            batches += self._decode(part, len(piece), received_at)
        return batches

    def _decoded_at_once(self, sample: SampledBatch) -> int:
        """Return of how many batches the blocks are decoded together; of a mirror's there are none."""
        if self._mirror is not None:
            return self._splits
        item_bytes = self._agent.window.length * sum(column.step_bytes for column in self._signature)
        batch_bytes = item_bytes * len(sample.keys) // self._splits
        return min(max(_DECODED_AT_ONCE_BYTES // max(batch_bytes, 1), 1), self._splits)

    def _decode(self, sample: SampledBatch, splits: int, received_at: float) -> list[Batch]:
        """Return so many batches, which are all that is in a sample."""
        sound = self._with_states(sample)
        while sound is not None:
            try:
                return self._batches(sound, splits, received_at)
            except codec.CorruptBlocks as error:  # of one column; another may have more
                sound = self._corrupt.replace(sound, sound.needing(error.chunks), str(error))
        return []

    def _batches(self, sample: SampledBatch, splits: int, received_at: float) -> list[Batch]:
        """Return the batches of a sample; none if a mirror has none of its items.

        Raises:
            CorruptBlocks: Items cannot be decoded.
        """
        started = time.perf_counter()
        opened = self._open(sample)
        if opened is None:
            return []
        sample, rows = opened
        _DECODE_S.inc(time.perf_counter() - started)
        order, at_once = _dealt(sample, splits), self._gathered_at_once(rows, splits)
        batches: list[Batch] = []
        for first in range(0, splits, at_once):
            batches += self._gather(sample, rows, order[first : first + at_once], received_at)
        return batches

    def _gathered_at_once(self, rows: codec.DecodedBatch, splits: int) -> int:
        """Return how many batches are gathered together."""
        if self._mirror is None:  # its batches may share frames, which are copied to the device once
            return splits
        columns = [column for name, column in rows.columns.items() if not (self._gathered and name == OBSERVATION)]
        row_bytes = sum(column[:1].nbytes for column in columns) + self._prefetcher.observation_bytes
        batch_bytes = row_bytes * rows.index.size // splits
        return min(max(_AT_ONCE_BYTES // max(batch_bytes, 1), 1), splits)

    def _gather(
        self, sample: SampledBatch, rows: codec.DecodedBatch, order: NDArray[np.int64], received_at: float
    ) -> list[Batch]:
        """Return the batches of the items at the rows of `order`, [batches, B]; none if they were written over."""
        started = time.perf_counter()
        picked = order.ravel()
        arrays = self._agent.decode(rows.columns, rows.index[picked])
        if rows.encoded is not None:
            arrays |= self._decoded_observations(arrays, rows.encoded)
        elif self._gathered:
            arrays = _row_numbers(arrays)
        elif self._mirror is not None and FRAMES in arrays:
            arrays |= _own_frames(arrays)
        if not self._gathered and self._is_overrun(sample):
            return []
        arrays[_WEIGHT], largest = self._weights(sample, order)
        if self._agent.recurrent_state_size:
            arrays[RECURRENT_STATE] = recurrent_states(sample.payloads, self._agent.recurrent_state_size)[picked]
        decoded = time.perf_counter()
        on_device = self._prefetcher.start(arrays, self._gathered)
        _DECODE_S.inc(decoded - started)
        _COPY_S.inc(time.perf_counter() - decoded)
        if self._gathered and self._is_overrun(sample):  # what is kept from now on is written after these gathers
            return []
        items = _Items(sample.keys[picked], self._versions(sample)[picked], largest)
        return self._split(items, len(order), on_device, sample.table_items, received_at)

    def _decoded_observations(
        self, arrays: Mapping[str, NDArray[Any]], encoded: codec.EncodedColumn
    ) -> dict[str, NDArray[Any]]:
        """Return the observations of a batch that has row numbers in their place, or the frames that it shows."""
        if FRAMES in arrays:
            return {FRAMES: encoded.decode()}
        return encoded.take({name: arrays[name] for name in self._observations})

    def _is_overrun(self, sample: SampledBatch) -> bool:
        """Return whether rows of a sample were written over before they had been read."""
        is_overrun = self._mirror is not None and not self._mirror.is_intact(sample)
        metrics.MIRROR_OVERRUNS.inc(is_overrun)
        return is_overrun

    def _with_states(self, sample: SampledBatch) -> SampledBatch | None:
        """Return a sample without the items whose recurrent state is no such thing; None if it has no others."""
        size = self._agent.recurrent_state_size
        if not size or not (wrong := without_recurrent_state(sample.payloads or (b"",) * len(sample.keys), size)).any():
            return sample
        return self._corrupt.replace(sample, wrong, f"a payload has not the bytes of {size} floats")

    def _open(self, sample: SampledBatch) -> tuple[SampledBatch, codec.DecodedBatch] | None:
        """Return a sample and its rows; without corrupt items from a mirror, and None if it has no others."""
        if self._mirror is not None:
            return self._open_kept(sample, self._mirror)
        rows = codec.decode(self._signature, sample, self._agent.window.length, later=self._decoded_later)
        if rows.encoded is not None:
            rows = dataclasses.replace(rows, columns=with_row_numbers(rows.columns))
        return sample, rows

    def _open_kept(self, sample: SampledBatch, mirror: TableMirror) -> tuple[SampledBatch, codec.DecodedBatch] | None:
        """Return a kept sample without the items of corrupt chunks, and where the mirror has its rows."""
        sound: SampledBatch | None = sample
        if len(chunks := mirror.corrupt_chunks(sample)):
            sound = self._corrupt.replace(sample, sample.needing(chunks), f"{len(chunks)} chunks cannot be decoded")
        if sound is None:
            return None
        columns = with_row_numbers(mirror.columns) if self._gathered else mirror.columns
        return sound, codec.DecodedBatch(columns, mirror.rows_of(sound, self._agent.window.length))

    def _weights(
        self, sample: SampledBatch, order: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return the weight of each item of `order`, flat, and the divisor of each batch."""
        if self._table.sampler != "prioritized":
            return np.ones(order.size, dtype=np.float32), np.ones(len(order))
        exponent = importance_sampling_exponent(self._table, self._counters.learner_steps)
        probability = sample.probabilities[order]
        weights = importance_weights(probability, sample.table_items, exponent).ravel()
        return weights, largest_weight(probability, sample.table_items, exponent)

    def _versions(self, sample: SampledBatch) -> NDArray[np.float64]:
        """Return the version that chose each item's first action, [B]: that of the chunk which holds it."""
        window = self._agent.window
        history = np.maximum(window.history - (window.length - sample.lengths), 0)  # shorter at a stream's start
        chunk = np.searchsorted(np.cumsum(sample.step_counts), sample.first_rows + history, side="right")
        return sample.params_versions[chunk].astype(np.float64)

    def _split(
        self, items: _Items, count: int, on_device: DeviceBatch, table_items: int, received_at: float
    ) -> list[Batch]:
        size = len(items.keys) // count
        parts = {
            name: (tensor,) * count if name == FRAMES else tensor.split(size)
            for name, tensor in on_device.tensors.items()
        }
        batches = []
        for number in range(count):
            columns = {name: part[number] for name, part in parts.items()}
            weight = columns.pop(_WEIGHT)
            part_of = slice(number * size, (number + 1) * size)
            keys, versions, largest = items.keys[part_of], items.versions[part_of], float(items.largest_weight[number])
            batches.append(Batch(columns, weight, keys, on_device, table_items, versions, received_at, largest))
        return batches


def _is_compressed(signature: Signature) -> bool:
    """Return whether observations are one column, of LZ4 blocks."""
    return any(spec.name == OBSERVATION and spec.codec is Codec.LZ4 for spec in signature)


def _dealt(sample: SampledBatch, splits: int) -> NDArray[np.int64]:
    """Return the items of each batch, [splits, B]: every splits-th, for its share of a sampler's strata."""
    return np.arange(len(sample.keys)).reshape(-1, splits).T


def _row_numbers(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a batch whose observations are row numbers, under the names that observations have."""
    numbers = {name: arrays[rows] for name, rows in ROWS.items() if rows in arrays}
    rest = {name: array for name, array in arrays.items() if name != FRAMES and name not in ROWS.values()}
    return rest | numbers


def _own_frames(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the frames that a batch shows, copied out of the mirror, and their rows renumbered."""
    rows = np.concatenate([arrays[name].ravel() for name in ROWS.values()])
    shown, places = np.unique(rows, return_inverse=True)
    own: dict[str, NDArray[Any]] = {FRAMES: arrays[FRAMES][shown]}
    first = 0
    for name in ROWS.values():
        own[name] = places[first : first + arrays[name].size].reshape(arrays[name].shape)
        first += arrays[name].size
    return own


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Per-item data of a sample besides its columns, in the order of the batches."""

    keys: NDArray[np.uint64]
    versions: NDArray[np.float64]
    largest_weight: NDArray[np.float64]


def make_decoder(
    config: LearnerConfig,
    agent: Agent,
    table: TableConfig,
    device: torch.device,
    counters: Counters,
    delete: Delete,
    *,
    splits: int,
    kept: KeptRows,
) -> Decoder:
    """Return the decoder of a learner.

    Args:
        config: Its settings.
        agent: Its agent.
        table: The table that is sampled.
        device: Where batches go.
        counters: Whose updates the schedule of importance weights follows.
        delete: Removes corrupt items from the table.
        splits: Batches of one sample.
        kept: The table's rows, unless samples bring them.
    """
    corrupt, prefetcher = CorruptItemFilter(delete, time.monotonic), DevicePrefetcher(device, kept.on_device)
    parts = table.signature, config.table, counters, prefetcher, corrupt
    return Decoder(agent, *parts, splits=splits, mirror=kept.mirror)


def recurrent_states(payloads: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """Return the recurrent states of items, each of `size` numbers, [B, M]."""
    return np.frombuffer(b"".join(payloads), dtype=STATE_DTYPE).reshape(len(payloads), size).astype(np.float32)


def without_recurrent_state(payloads: Sequence[bytes], size: int) -> NDArray[np.bool_]:
    """Return which items [B] have another payload than a recurrent state of `size` numbers."""
    return np.array([len(payload) != size * STATE_DTYPE.itemsize for payload in payloads], dtype=np.bool_)
