"""One call of `append`, packed, and whether the server has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tidemill.replay import wire
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.v1 import replay_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class AppendMessage:
    """One call of `append`, packed.

    Attributes:
        request: What is sent.
        env_index: Stream of each chunk, [C].
        end_step: The step after each chunk's last, [C].
    """

    request: pb.AppendRequest
    env_index: NDArray[np.int64]
    end_step: NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> Self:
        """Pack chunks and the items that end in them into one request."""
        env_index = np.array([chunk.env_index for chunk in chunks], dtype=np.int64)
        end_step = np.array([chunk.first_step + chunk.step_count for chunk in chunks], dtype=np.int64)
        return cls(pb.AppendRequest(data=wire.pack_append(chunks, items)), env_index, end_step)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.env_index)

    def is_stored(self, next_steps: NDArray[np.int64]) -> bool:
        """Return whether a server that wants `next_steps` has all of it."""
        return bool((next_steps[self.env_index] >= self.end_step).all())
