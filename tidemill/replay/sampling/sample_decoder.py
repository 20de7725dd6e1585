"""Turns a sample into batches: decodes or looks up its rows, replaces corrupt items, weighs items, deals them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array, Ints
from tidemill.replay import codec
from tidemill.replay.batch import SampledBatch
from tidemill.replay.codec import CorruptBlocks, DecodedBatch, EncodedColumn
from tidemill.replay.columns import ItemColumns, Per, split, values_of
from tidemill.replay.sampling.corrupt_items import CorruptItemFilter
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.steps import LENGTH, SEPARATOR, ragged_columns

_SMALLEST = 1e-38  # a divisor where there are no items


def importance_weights(
    probability: NDArray[np.float64], table_items: int, exponent: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the weight of each item of one or more batches (Schaul et al., 2016, section 3.4), and their divisors.

    Args:
        probability: Probability P(i) with which each item was chosen, float64 [..., B], more than 0.
        table_items: Items N in the table when the batch was drawn.
        exponent: beta, from 0 on; 0 makes all weights 1.

    Returns:
        `(N P(i))^-beta` divided by the largest of its batch, float32 [..., B], in (0, 1]; and that largest weight,
        float64 [...], with which the weights of several batches can be compared.
    """
    if not exponent:  # as of a uniform table: spares a power for each item
        return np.ones(probability.shape, np.float32), np.ones(probability.shape[:-1])
    weight: NDArray[np.float64] = (max(table_items, 1) * probability) ** -exponent
    largest: NDArray[np.float64] = weight.max(axis=-1, initial=_SMALLEST)
    return (weight / largest[..., None]).astype(np.float32), largest


AT_ONCE_BYTES = 8 * 2**20
"""Of the batches that are gathered from a mirror at once: larger ones take new memory from the system each time."""

DECODED_AT_ONCE_BYTES = 16 * 2**20
"""Of the batches whose blocks are decoded at once, if no two items share rows.

Beyond 32 MiB the C library keeps no freed memory (mallopt(3), M_MMAP_THRESHOLD): each page of each array is then taken
from the system again, one thread at a time.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ItemRows:
    """Argument of a transform: N items, of one batch or of several that are handed out in turn.

    Attributes:
        columns: Each column of the table, [R, ...]; not to be written to, nor to be used after the call.
        index: Rows of each item, oldest first, int64 [N, L]; an item of fewer steps repeats its first one in front.
        weights: Importance weight of each item, float32 [N].
        payloads: Payload of each item; empty when none has one.
        encoded: The column that `encoded` of the dataset names, whose rows have the numbers of the others; or None.
        is_kept: Whether the columns are those of a mirror, whose rows another sample may be written to after the call.
        decode_s: Seconds that the rows took to decode; 0 where they were decoded for an earlier call.
        table: Number of the dataset's table that the items are of, from 0.
    """

    columns: Mapping[str, Array]
    index: Ints
    weights: NDArray[np.float32]
    payloads: tuple[bytes, ...]
    encoded: EncodedColumn | None = None
    is_kept: bool = False
    decode_s: float = 0.0
    table: int = 0


Transform = Callable[[ItemRows], Mapping[str, Any]]
"""Returns what a batch has as `columns`: arrays or tensors with an entry per item, or a `Whole`."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A value of a transform that each of its batches gets whole, such as frames that their items share."""

    value: Any


class SampleDecoder:
    """Decodes samples of `splits * B` items into `splits` batches of B. Safe to call from several threads."""

    def __init__(  # noqa: PLR0913 - most have a default
        self,
        table: TableConfig,
        batch_size: int,
        splits: int,
        corrupt: CorruptItemFilter,
        exponent: Callable[[], float],
        *,
        number: int = 0,
        mirror: TableMirror | None = None,
        transform: Transform | None = None,
        encoded: str = "",
        casts: Mapping[str, np.dtype[Any]] | None = None,
        history: int = 0,
        keeps_rest: bool = False,
        whole_samples: bool = False,
        at_once_bytes: int = AT_ONCE_BYTES,
        decoded_at_once_bytes: int = DECODED_AT_ONCE_BYTES,
    ) -> None:
        """Take the parts.

        Args:
            table: The table.
            batch_size: Items of a batch.
            splits: Batches of a sample.
            corrupt: Replaces items that cannot be decoded.
            exponent: Returns that of the importance weights.
            number: Of the table, for `ReplayBatch.tables`.
            mirror: Keeps the rows of the samples; None if they bring them.
            transform: Makes the columns of batches; None for arrays [B, L, ...] of each column.
            encoded: Column that the transform decodes itself; without a mirror alone.
            casts: Columns of batches and their types, where the table has others besides; None for the table's own.
            history: See `ReplayBatch.first_versions`.
            keeps_rest: Whether the last items of a sample that is smaller are a batch.
            whole_samples: Whether a sample of which a mirror has lost a part gives no batch, as it is drawn again.
            at_once_bytes: Of the batches that are gathered from a mirror together.
            decoded_at_once_bytes: Of the batches whose blocks are decoded together.
        """
        self._table, self._size, self._splits, self._corrupt = table, batch_size, splits, corrupt
        self._exponent, self._number, self._mirror, self._transform = exponent, number, mirror, transform or _arrays
        self._encoded, self._casts = encoded if mirror is None and casts is None else "", casts
        self._history, self._keeps_rest = history, keeps_rest
        self._whole_samples = whole_samples
        self._at_once_bytes, self._decoded_at_once_bytes = at_once_bytes, decoded_at_once_bytes
        ragged = ragged_columns(table.signature) if transform is None else ()
        lengths = {name: f"{name}{SEPARATOR}{LENGTH}" for name in ragged}
        self._lengths = {name: length for name, length in lengths.items() if casts is None or length in casts}
        self._lock = threading.Lock()  # guards the count below
        self.overruns = 0
        """Gathers that were dropped because the mirror's rows were written over meanwhile."""

    def decode(self, sample: SampledBatch) -> list[ReplayBatch]:
        """Return the batches of a sample, all of the same size; what is small is done once for all of them.

        Corrupt items are replaced. Where all are corrupt, no batch is returned, nor where a mirror's rows were written
        over. A sample with fewer items than it should have is cut into batches in its order.

        Raises:
            DataLoss: The sample is not one of this table's signature.
        """
        count, taken_at = len(sample.keys), time.monotonic()
        if count != self._size * self._splits:
            starts = range(0, count if self._keeps_rest else count - self._size + 1, self._size)
            parts = [sample.take(slice(start, start + self._size)) for start in starts]
            return [batch for part in parts for batch in self._decode(part, 1, taken_at)]
        if self._splits > 1:  # each batch gets every splits-th item, for its share of a sampler's strata
            sample = sample.take(np.arange(count).reshape(-1, self._splits).T.ravel())
        batches: list[ReplayBatch] = []
        for first, splits in _pieces(self._splits, self._decoded_at_once(count)):
            items = slice(first * self._size, (first + splits) * self._size)
            part = sample if splits == self._splits else sample.take(items)
            batches += self._decode(part, splits, taken_at)
        return batches

    @property
    def corrupt_items(self) -> int:
        """Items that were replaced because they could not be decoded."""
        return self._corrupt.items

    def _decoded_at_once(self, items: int) -> int:
        """Return of how many batches the blocks are decoded together; of a mirror's there are none."""
        if self._mirror is not None:
            return self._splits
        item_bytes = self._table.max_item_steps * sum(column.step_bytes for column in self._table.signature)
        batch_bytes = item_bytes * items // self._splits
        return min(max(self._decoded_at_once_bytes // max(batch_bytes, 1), 1), self._splits)

    def _decode(self, sample: SampledBatch, splits: int, taken_at: float) -> list[ReplayBatch]:
        """Return so many batches, which are all that is in a sample."""
        sound = self._with_payloads(sample)
        while sound is not None:
            try:
                return self._batches(sound, splits, taken_at)
            except CorruptBlocks as error:  # of one column; another may have more
                sound = self._corrupt.replace(sound, sound.needing(error.chunks), str(error))
        return []

    def _with_payloads(self, sample: SampledBatch) -> SampledBatch | None:
        """Return a sample without the items whose payload has another size than it must; None if it has no others."""
        size = self._table.payload_bytes
        if not size:
            return sample
        payloads = sample.payloads or (b"",) * len(sample.keys)
        if all(len(payload) == size for payload in payloads):
            return sample
        wrong = np.array([len(payload) != size for payload in payloads], dtype=np.bool_)
        return self._corrupt.replace(sample, wrong, f"a payload has not {size} bytes")

    def _batches(self, sample: SampledBatch, splits: int, taken_at: float) -> list[ReplayBatch]:
        """Return the batches of a sample, without those whose rows a mirror has lost.

        Raises:
            CorruptBlocks: Items cannot be decoded.
        """
        started = time.perf_counter()
        opened = self._open(sample)
        if opened is None:
            return []
        sample, rows = opened
        decode_s = time.perf_counter() - started
        size = len(sample.keys) // splits
        batches: list[ReplayBatch] = []
        for first, count in _pieces(splits, self._gathered_at_once(rows, splits)):
            part, own = sample, rows
            if count < splits:
                items = slice(first * size, (first + count) * size)
                part, own = sample.take(items), replace(rows, index=rows.index[items])
            gathered = self._gather(part, own, count, taken_at, decode_s)
            if not gathered and self._whole_samples:
                return []
            batches += gathered
            decode_s = 0.0
        return batches

    def _open(self, sample: SampledBatch) -> tuple[SampledBatch, DecodedBatch] | None:
        """Return a sample and its rows; without corrupt items from a mirror, and None if it has no others."""
        length, mirror = self._table.max_item_steps, self._mirror
        if mirror is None:
            return sample, codec.decode(self._table.signature, sample, length, later=self._encoded)
        sound: SampledBatch | None = sample
        if len(chunks := mirror.corrupt_chunks(sample)):
            sound = self._corrupt.replace(sample, sample.needing(chunks), f"{len(chunks)} chunks cannot be decoded")
        return None if sound is None else (sound, DecodedBatch(mirror.columns, mirror.rows_of(sound, length)))

    def _gathered_at_once(self, rows: DecodedBatch, splits: int) -> int:
        """Return how many batches are gathered together."""
        if self._mirror is None:  # its batches may share rows, which a transform handles once
            return splits
        row_bytes = sum(column[:1].nbytes for column in rows.columns.values()) + self._mirror.elsewhere_bytes
        batch_bytes = row_bytes * rows.index.size // splits
        return min(max(self._at_once_bytes // max(batch_bytes, 1), 1), splits)

    def _gather(
        self, items: SampledBatch, rows: DecodedBatch, count: int, taken_at: float, decode_s: float
    ) -> list[ReplayBatch]:
        """Return so many batches, which are all of these items; none if their rows were written over."""
        probabilities = items.probabilities.reshape(count, -1)
        weights, largest = importance_weights(probabilities, items.table_items, self._exponent())
        if self._casts is not None:
            rows = _cast(rows, self._casts, is_kept=self._mirror is not None)
        given = ItemRows(
            columns=rows.columns,
            index=rows.index,
            weights=weights.ravel(),
            payloads=items.payloads,
            encoded=rows.encoded,
            is_kept=self._mirror is not None and self._casts is None,
            decode_s=decode_s,
            table=self._number,
        )
        columns = dict(self._transform(given))
        if self._mirror is not None and not self._mirror.is_intact(items):
            with self._lock:
                self.overruns += 1
            return []
        shared = {name: columns.pop(name).value for name in list(columns) if isinstance(columns[name], Whole)}
        params_versions, first_versions = self._versions(items)
        values = values_of(items, Per.ITEM, ItemColumns) | {
            "sizes": {name: columns.pop(length) for name, length in self._lengths.items()},
            "columns": columns,
            "weights": given.weights,
            "params_versions": params_versions,
            "first_versions": first_versions,
            "tables": np.full(len(items.keys), self._number),
            "table_items": np.full(len(items.keys), items.table_items),
        }
        decoded_at = time.monotonic()
        batches = [
            ReplayBatch(
                **part,
                received_at=items.received_at,
                taken_at=taken_at,
                decoded_at=decoded_at,
                steps=rows.index.shape[1],
                largest_weight=weight,
            )
            for part, weight in zip(split(values, count), largest.tolist(), strict=True)
        ]
        for batch in batches:
            batch.columns.update(shared)
        return batches

    def _versions(self, items: SampledBatch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the versions of the parameters of each item's last chunk and of that of its first step behind history.

        Items are shorter at a stream's start, where they have less history.
        """
        ends, last_rows = np.cumsum(items.step_counts), items.first_rows + items.lengths - 1
        history = np.maximum(items.lengths + (self._history - self._table.max_item_steps), 0)
        first = np.searchsorted(ends, np.minimum(items.first_rows + history, last_rows), side="right")
        last = first
        while (ahead := ends[last] <= last_rows).any():  # once for each further chunk of an item
            last = last + ahead
        return items.params_versions[last], items.params_versions[first]


def _arrays(rows: ItemRows) -> dict[str, Array]:
    return {name: values[rows.index] for name, values in rows.columns.items()}


def _cast(rows: DecodedBatch, dtypes: Mapping[str, np.dtype[Any]], *, is_kept: bool) -> DecodedBatch:
    """Return those columns, of these types; of a mirror's only the rows that the items have, copied."""
    columns, index = {name: rows.columns[name] for name in dtypes}, rows.index
    if is_kept:  # it has the whole table
        used, places = np.unique(index, return_inverse=True)
        columns = {name: column[used] for name, column in columns.items()}
        index = places.reshape(index.shape)
    return DecodedBatch({name: columns[name].astype(dtype, copy=False) for name, dtype in dtypes.items()}, index)


def _pieces(count: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Yield the first of each piece of some batches, and how many it has."""
    for first in range(0, count, at_once):
        yield first, min(at_once, count - first)
