"""Columns of chunks to blocks of bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
from numpy.typing import NDArray

from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay.batch import Blocks, SampledBatch
from tidemill.types import Codec, ColumnSpec, Signature

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """The rows that a batch's items cover.

    Attributes:
        columns: Each column of the signature, [R, ...]; rows of one stream are in order.
        index: Rows of each item, oldest first, int64 [B, L] with L the longest item asked for. A shorter item,
            as there are at a stream's start, repeats its first row in front.
    """

    columns: dict[str, Array]
    index: NDArray[np.int64]


def encode(signature: Signature, columns: Mapping[str, Array], acceleration: int = 1) -> tuple[bytes, ...]:
    """Return the blocks of one chunk, one for each column of the signature in its order.

    Args:
        signature: The columns of the stream.
        columns: Each column's steps, [steps, ...], with the signature's dtype and shape.
        acceleration: LZ4's; 1 is the densest of its fast mode, more is faster and larger.

    Raises:
        InvalidArgument: a column is missing, or has another dtype, shape or number of steps.
    """
    raise NotImplementedError


def decode(signature: Signature, batch: SampledBatch, length: int) -> DecodedBatch:
    """Return the columns and rows of a sampled batch. Safe to call from several threads.

    Args:
        signature: The columns of the table.
        batch: What the sampler received.
        length: Steps of a full item, the L of `index`.

    Raises:
        DataLoss: a block does not decode to the size the signature says.
        InvalidArgument: an item is longer than `length`.
    """
    raise NotImplementedError
