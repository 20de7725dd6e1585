"""One batch of decoded items as a training loop receives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.replay.columns import ItemColumns, Per, joined, per_item
from tidemill.replay.writing.steps import nest


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ReplayBatch(ItemColumns):
    """B items of L steps, ready to use; an item of fewer steps repeats its first one in front.

    Attributes:
        columns: Each column, [B, L, ...]; one of varying length is padded with zeros, see `ragged`. With a `transform`,
            what that returned.
        sizes: Of the columns of varying length, how much of each step counts, int32 [B, L].
        weights: Importance weights to the power of `beta`, the greatest is 1, float32 [B].
        params_versions: Version of the parameters that chose the actions of each item's last chunk, uint64 [B].
        tables: Which of the dataset's tables each item comes from, int64 [B].
        table_items: Items of each item's table when it was sampled, int64 [B].
        first_versions: Version of the parameters that chose the actions of the chunk that holds each item's first step
            behind `history`, uint64 [B].
        steps: Steps L of an item, the repeated ones included.
        received_at: When the sample arrived, by `time.monotonic`, in seconds.
        taken_at: When decoding the sample began, by the same clock.
        decoded_at: When the batch was ready, by the same clock.
        largest_weight: The largest importance weight before the weights were divided by it, with which those of several
            learners that train together are compared.
    """

    columns: dict[str, Any] = field(metadata=per_item())
    sizes: dict[str, NDArray[np.int32]] = field(metadata=per_item())
    weights: NDArray[np.float32] = field(metadata=per_item("f4"))
    params_versions: NDArray[np.uint64] = field(metadata=per_item("u8"))
    tables: NDArray[np.int64] = field(metadata=per_item("i8"))
    table_items: NDArray[np.int64] = field(metadata=per_item("i8"))
    first_versions: NDArray[np.uint64] = field(metadata=per_item("u8"))
    steps: int
    received_at: float = 0.0
    taken_at: float = 0.0
    decoded_at: float = 0.0
    largest_weight: float = 1.0

    @classmethod
    def joined(cls, parts: Sequence[ReplayBatch], join: Join | None = None) -> ReplayBatch:
        """Return the items of at least one part behind those of the others, their weights by the largest of all.

        Args:
            parts: The batches.
            join: Makes the columns; None joins arrays. Columns of varying length are then left out.
        """
        largest = max(part.largest_weight for part in parts)
        pairs = any(part.keys.ndim > 1 for part in parts)
        behind = [
            replace(
                part,
                keys=_pairs(part.keys) if pairs else part.keys,
                weights=part.weights * np.float32(part.largest_weight / largest),
                columns=part.columns if join is None else {},
                sizes=part.sizes if join is None else {},
            )
            for part in parts
        ]
        whole = cls(
            **joined(behind, Per.ITEM),
            received_at=min(part.received_at for part in parts),
            taken_at=min(part.taken_at for part in parts),
            decoded_at=max(part.decoded_at for part in parts),
            steps=parts[0].steps,
            largest_weight=largest,
        )
        if join is not None:
            whole.columns.update(join(parts))
        return whole

    def __getitem__(self, column: str) -> Any:  # noqa: ANN401 - an array, or what a transform returned
        """Return a column, [B, L, ...]. KeyError: there is none of this name; the message has those that there are."""
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; columns: {sorted(self.columns)}")
        return self.columns[column]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lengths)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which steps are an item's own and not repeated, [B, L]."""
        mask: NDArray[np.bool_] = np.arange(self.steps) >= self.steps - self.lengths[:, None]
        return mask

    def nested(self) -> dict[str, Any]:
        """Return the columns, each [B, L, ...], as the nest that was appended; a tuple has the keys "0", "1", ..."""
        return nest(self.columns)

    def ragged(self, column: str) -> list[list[Array]]:
        """Return a column of varying length as one array for each step of each item, [B][L], oldest step first."""
        if column not in self.sizes:
            raise InvalidArgument(f"column is {column!r}, must be one of varying length: {sorted(self.sizes)}")
        values, sizes, own = self.columns[column], self.sizes[column], self.mask
        return [[values[i, j, : sizes[i, j]] for j in range(values.shape[1]) if own[i, j]] for i in range(len(self))]


Join = Callable[[Sequence[ReplayBatch]], Mapping[str, Any]]
"""Returns the columns of a batch of several tables, given the batch of each."""


def _pairs(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keys as those of several servers are, [N, 2]."""
    return keys if keys.ndim > 1 else np.stack((keys, np.zeros_like(keys)), axis=1)
