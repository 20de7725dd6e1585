"""From one raw sample to the batches of a few gradient steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.learner.counters import Counters
from services.learner.importance import importance_exponent, importance_weights
from services.learner.memories import MEMORY, memories
from services.learner.transfer import Transfer, Transferred
from tidemill import codec
from tidemill.config.table import TableSettings
from tidemill.replay.batch import SampledBatch
from tidemill.rl.agents.interface import Agent
from tidemill.types import Signature

_WEIGHT = "importance_weight"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one gradient step takes.

    Attributes:
        columns: What `Agent.decode` returned, on the device, each [B, ...], and `memory` if the items have one.
        weight: Importance weights, float32 [B].
        keys: Keys of the items, uint64 [B].
        transferred: The copy to the device, to be waited for.
        table_items: Items in the table when it was drawn.
        params_version: Mean version of the parameters that acted in its chunks.
        received_at: When it arrived, by the clock given.
    """

    columns: dict[str, Tensor]
    weight: Tensor
    keys: NDArray[np.uint64]
    transferred: Transferred
    table_items: int
    params_version: float
    received_at: float


class Decoder:
    """Decodes samples of `splits * B` items into `splits` batches of B. Safe to call from several threads."""

    def __init__(
        self,
        agent: Agent,
        signature: Signature,
        table: TableSettings,
        counters: Counters,
        transfer: Transfer,
        *,
        splits: int,
    ) -> None:
        self._agent, self._signature, self._table = agent, signature, table
        self._counters, self._transfer, self._splits = counters, transfer, splits

    def decode(self, sample: SampledBatch, received_at: float) -> list[Batch]:
        """Return the batches of a sample, all of the same size; the work is done once for all of them."""
        # Batch i takes items i, i + splits, ...: of a sampler's strata each batch gets its share.
        order = np.arange(len(sample.keys)).reshape(-1, self._splits).T.ravel()
        rows = codec.decode(self._signature, sample, self._agent.window.length)
        arrays = self._agent.decode(rows.columns, rows.index[order])
        arrays[_WEIGHT] = self._weights(sample, order)
        if sample.payloads:
            arrays[MEMORY] = memories(sample.payloads)[order]
        transferred = self._transfer.start(arrays)
        return self._split(sample, sample.keys[order], transferred, received_at)

    def _weights(self, sample: SampledBatch, order: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._table.sampler != "prioritized":
            return np.ones(len(order), dtype=np.float32)
        exponent = importance_exponent(self._table, self._counters.learner_steps)
        probability = sample.probabilities[order].reshape(self._splits, -1)
        return importance_weights(probability, sample.table_items, exponent).ravel()

    def _split(
        self, sample: SampledBatch, keys: NDArray[np.uint64], transferred: Transferred, received_at: float
    ) -> list[Batch]:
        size = len(keys) // self._splits
        parts = {name: tensor.split(size) for name, tensor in transferred.tensors.items()}
        params_version = float(sample.params_versions.mean())
        batches = []
        for number in range(self._splits):
            columns = {name: part[number] for name, part in parts.items()}
            weight = columns.pop(_WEIGHT)
            own_keys = keys[number * size : (number + 1) * size]
            batches.append(
                Batch(columns, weight, own_keys, transferred, sample.table_items, params_version, received_at)
            )
        return batches
