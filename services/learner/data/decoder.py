"""The last decoding step of a learner: batches from decoded rows, in the agent's form, on the training device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.replay.codec import EncodedColumn
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_decoder import ItemRows, Whole
from tidemill.rl.agents.interface import Agent, observation_columns_of
from tidemill.rl.transitions import FRAMES, ROWS
from tidemill.services.learner.data.device import DeviceBatch, DevicePrefetcher
from tidemill.services.learner.data.device_rows import DeviceRows, with_row_numbers
from tidemill.services.learner.status import metrics
from tidemill.types import OBSERVATION, Codec, Signature

STATE_DTYPE = np.dtype("<f4")
"""Of the numbers in an item's payload: the recurrent state of the policy at its start."""

RECURRENT_STATE = "recurrent_state"
"""Column of it in the batches of an agent that has one, float32 [B, M]."""

WEIGHT = "importance_weight"
DEVICE_BATCH = "device_batch"
"""With the weights, what `Batch.of` takes out of the columns of a dataset's batch: the copy to the device."""

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
        params_versions: Version of the parameters that chose the first action of each item of the run's own table.
        received_at: When it arrived, by `time.monotonic`, in seconds.
        taken_at: When decoding it began, by the same clock.
        decoded_at: When it was ready, by the same clock.
        table_s: How long each item had been in the table, in seconds, float32; of the
            run's own table, and None if the server does not say.
        traces: Trace context of each item, empty for one that is not traced; empty when none is.
        largest_weight: The largest importance weight before they were divided by it; other ranks have another.
        sizes: Items of each of the dataset's tables, one behind the other; empty if all are of one.
        source_items: Items in each table but the first when the batch was drawn.
        source_table_s: For each table but the first, how long each of its items had been there, in seconds, float32;
            empty if a server does not say.
    """

    columns: dict[str, Tensor]
    weight: Tensor
    keys: NDArray[np.uint64]
    device_batch: DeviceBatch
    table_items: int
    params_versions: NDArray[np.float64]
    received_at: float
    largest_weight: float = 1.0
    sizes: tuple[int, ...] = ()
    source_items: tuple[int, ...] = ()
    source_table_s: tuple[NDArray[np.float32], ...] = ()
    taken_at: float = 0.0
    decoded_at: float = 0.0
    table_s: NDArray[np.float32] | None = None
    traces: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, batch: ReplayBatch) -> Batch:
        """Return a batch whose columns a `ToDevice` made."""
        columns = dict(batch.columns)
        weight, device_batch = columns.pop(WEIGHT), columns.pop(DEVICE_BATCH)
        others = _of_other_tables(batch) if batch.tables[-1] else {}
        own = others["sizes"][0] if others else len(batch)
        return cls(
            columns=columns,
            weight=weight,
            keys=batch.keys,
            device_batch=device_batch,
            table_items=int(batch.table_items[0]),
            params_versions=batch.first_versions[:own].astype(np.float64),
            received_at=batch.received_at,
            taken_at=batch.taken_at,
            decoded_at=batch.decoded_at,
            table_s=None if batch.table_s is None else batch.table_s[:own],
            traces=batch.traces,
            largest_weight=batch.largest_weight,
            **others,
        )

    def tables(self) -> list[tuple[int, slice]]:
        """Return the number of each of the dataset's tables, and where its items are."""
        ends = np.cumsum(self.sizes or (len(self.keys),)).tolist()
        return [(table, slice(start, end)) for table, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]


class Batches(Protocol):
    """A `ReplayDataset`."""

    def take(self, timeout_s: float) -> ReplayBatch | None:
        """Return the next batch, or None if there is none in time; 0 does not wait."""


class DatasetBatches:
    """The batches of a dataset as the trainer takes them (`BatchSource`)."""

    def __init__(self, dataset: Batches, skip: int = 0) -> None:
        """Take the dataset, and how many of its first batches are left out."""
        self._dataset, self._skip = dataset, skip

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout_s` seconds; 0 does not wait.

        Raises:
            TidemillError: The replay service refused for good.
        """
        batch = self._dataset.take(timeout_s)
        while batch is not None and self._skip:
            self._skip -= 1
            batch = self._dataset.take(timeout_s)
        return None if batch is None else Batch.of(batch)


class ToDevice:
    """The transform of a learner's dataset. Safe to call from several threads."""

    def __init__(
        self,
        agent: Agent,
        device: torch.device,
        on_device: Callable[[], DeviceRows | None] = lambda: None,
        weights: Sequence[float] = (1.0,),
    ) -> None:
        """Take the parts.

        Args:
            agent: Makes arrays of rows.
            device: Where batches go.
            on_device: Returns the observations of the first table that are on the device already, if any, once the
                mirror is open.
            weights: Factor of the importance weights of each table's items.
        """
        self._weights = tuple(weights)
        self._agent, self._device, self._on_device = agent, device, on_device
        self._observations = observation_columns_of(agent)
        self._opening = threading.Lock()
        self._prefetchers: dict[bool, DevicePrefetcher] = {}

    def __call__(self, rows: ItemRows) -> Mapping[str, Any]:
        """Return the tensors of some batches, which may still be on their way."""
        started = time.perf_counter()
        prefetcher = self._opened(is_first=rows.table == 0)
        gathered = self._observations if prefetcher.has_observations else ()
        columns = with_row_numbers(rows.columns) if gathered or rows.encoded is not None else rows.columns
        arrays = self._agent.decode(columns, rows.index)
        if rows.encoded is not None:
            arrays |= self._decoded_observations(arrays, rows.encoded)
        elif gathered:
            arrays = _row_numbers(arrays)
        elif rows.is_kept and FRAMES in arrays:
            arrays |= _own_frames(arrays)
        factor = self._weights[rows.table]
        arrays[WEIGHT] = rows.weights if factor == 1 else rows.weights * np.float32(factor)
        if size := self._agent.recurrent_state_size:
            arrays[RECURRENT_STATE] = recurrent_states(rows.payloads, size)
        decoded = time.perf_counter()
        on_device = prefetcher.start(arrays, gathered)
        _DECODE_S.inc(rows.decode_s + decoded - started)
        _COPY_S.inc(time.perf_counter() - decoded)
        tensors = {name: Whole(tensor) if name == FRAMES else tensor for name, tensor in on_device.tensors.items()}
        return tensors | {DEVICE_BATCH: Whole(on_device)}

    def _opened(self, *, is_first: bool) -> DevicePrefetcher:
        with self._opening:
            if is_first not in self._prefetchers:
                rows = self._on_device() if is_first else None
                self._prefetchers[is_first] = DevicePrefetcher(self._device, rows)
            return self._prefetchers[is_first]

    def _decoded_observations(
        self, arrays: Mapping[str, NDArray[Any]], encoded: EncodedColumn
    ) -> dict[str, NDArray[Any]]:
        """Return the observations of a batch that has row numbers in their place, or the frames that it shows."""
        if FRAMES in arrays:
            return {FRAMES: encoded.decode()}
        return encoded.take({name: arrays[name] for name in self._observations})


def decoded_later(agent: Agent, signature: Signature) -> str:
    """Return the column that `ToDevice` decodes once the agent has said which rows go where; empty for none."""
    is_compressed = any(spec.name == OBSERVATION and spec.codec is Codec.LZ4 for spec in signature)
    return OBSERVATION if is_compressed and observation_columns_of(agent) else ""


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


def _of_other_tables(batch: ReplayBatch) -> dict[str, Any]:
    """Return the fields of a `Batch` that one of several tables has, whose items lie behind one another.

    The training thread does this for each batch: one of a single table is spared it, some 25 us.
    """
    sizes = np.bincount(batch.tables)
    ends = np.cumsum(sizes)[:-1]
    ages = () if batch.table_s is None else tuple(np.split(batch.table_s, ends)[1:])
    return {
        "sizes": tuple(sizes.tolist()),
        "source_items": tuple(batch.table_items[ends].tolist()),
        "source_table_s": ages,
    }


def recurrent_states(payloads: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """Return the recurrent states of items, each of `size` numbers, [B, M]."""
    return np.frombuffer(b"".join(payloads), dtype=STATE_DTYPE).reshape(len(payloads), size).astype(np.float32)
