"""The last decoding step of a learner: batches from decoded rows, in the agent's form, on the training device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.replay.codec import EncodedColumn
from tidemill.replay.sampling.dataset import ReplayDataset
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
"""With the weights, what `Batch` takes out of the columns of a dataset's batch: the copy to the device."""

_DECODE_S, _COPY_S = (metrics.STAGE_SECONDS.labels(stage) for stage in ("decode", "copy"))


class Batch:
    """The input of one update: a batch of a dataset whose columns a `ToDevice` made, as the trainer reads it.

    Attributes:
        replay: The dataset's batch.
        columns: What `Agent.decode` returned, on the device, each [B, ...] except the `frames` that batches of one
            sample may share; and `recurrent_state` if the items have one.
        weight: Importance weights, float32 [B].
        device_batch: The copy to the device; wait for it before use.
        sizes: Items of each of the dataset's tables, one behind the other, the run's own table first; empty if all
            are of one.
    """

    __slots__ = ("columns", "device_batch", "replay", "sizes", "weight")

    def __init__(self, replay: ReplayBatch) -> None:
        """Take the dataset's batch.

        The training thread does this for each update: what few readers need is worked out when they ask.
        """
        columns = dict(replay.columns)
        self.weight: Tensor = columns.pop(WEIGHT)
        self.device_batch: DeviceBatch = columns.pop(DEVICE_BATCH)
        self.columns: dict[str, Tensor] = columns
        self.replay = replay
        self.sizes: tuple[int, ...] = tuple(np.bincount(replay.tables).tolist()) if replay.tables[-1] else ()

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Keys of the items, uint64 [B]."""
        return self.replay.keys

    @property
    def largest_weight(self) -> float:
        """The largest importance weight before they were divided by it; other ranks have another."""
        return self.replay.largest_weight

    @property
    def params_versions(self) -> NDArray[np.float64]:
        """Version of the parameters that chose the first action of each item of the run's own table, [own_items]."""
        return self.replay.first_versions[: self.own_items].astype(np.float64)

    @property
    def own_items(self) -> int:
        """Items of the run's own table."""
        return self.sizes[0] if self.sizes else len(self.replay)

    def tables(self) -> list[tuple[int, slice]]:
        """Return the number of each of the dataset's tables, and where its items are."""
        ends = np.cumsum(self.sizes or (len(self.replay),)).tolist()
        return [(table, slice(start, end)) for table, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]


class DatasetBatches:
    """The batches of a dataset as the trainer takes them (`BatchSource`)."""

    def __init__(self, dataset: ReplayDataset, skip: int = 0) -> None:
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
        return None if batch is None else Batch(batch)


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


def recurrent_states(payloads: Sequence[bytes], size: int) -> NDArray[np.float32]:
    """Return the recurrent states of items, each of `size` numbers, [B, M]."""
    return np.frombuffer(b"".join(payloads), dtype=STATE_DTYPE).reshape(len(payloads), size).astype(np.float32)
