"""The nouns that two or more processes share: columns, signatures, streams and windows."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.errors import InvalidArgument


class Codec(enum.Enum):
    """How one column of a chunk is stored."""

    RAW = "raw"
    """The little-endian bytes of the array, C order."""
    LZ4 = "lz4"
    """One LZ4 block (no frame header) over the whole chunk's raw bytes."""


@dataclass(frozen=True)
class ColumnSpec:
    """One column of a stream: what every step holds under this name.

    Attributes:
        name: Letters, digits and underscores, e.g. `observation`.
        dtype: NumPy dtype name with a fixed size, e.g. `uint8` or `float32`.
        shape: Shape of one step, without batch or time; `()` is a scalar.
        codec: How a chunk stores the column.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: Codec = Codec.RAW

    @property
    def step_bytes(self) -> int:
        """Bytes of one step, uncompressed."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


Signature = tuple[ColumnSpec, ...]
"""The columns of a table, in wire order."""


@dataclass(frozen=True)
class WindowSpec:
    """Which steps of a stream an item of an agent covers.

    An item that starts acting at step s covers steps `s - history .. s + steps`, that is
    `history + steps + 1` of them. Only at the very start of a stream is the history shorter.

    Attributes:
        history: Steps before the first action: `frame_stack - 1`, and at least 1 for a recurrent agent.
        steps: Transitions in the window: n for an n-step agent, burn-in + unroll + n - 1 for a recurrent one.
        stride: Distance between the starts of two neighbouring items of a stream, in steps.
        keep_all: Whether even a window that starts at a final observation step, or in a stream that begins in the
            middle of an episode, becomes an item: for an agent that waits for as many items as streams.
    """

    history: int
    steps: int
    stride: int = 1
    keep_all: bool = False

    def __post_init__(self) -> None:
        if self.history < 0 or self.steps < 1 or self.stride < 1:
            raise InvalidArgument(f"a window needs history >= 0, steps >= 1 and stride >= 1, got {self}")

    @property
    def length(self) -> int:
        """Steps of an item, the bootstrap step included."""
        return self.history + self.steps + 1


@dataclass(frozen=True)
class EnvSpec:
    """Facts about an environment that an agent needs to build its networks.

    Attributes:
        observation_shape: Shape of one observation, without the frame stack, e.g. (84, 84) or (8,).
        observation_dtype: `uint8` for images, `float32` for vectors.
        frame_stack: Observations the network sees at once; 1 means no stack and no stack axis.
        num_actions: Discrete actions; 0 for a continuous action space.
        action_shape: Shape of one continuous action in [-1, 1]; `()` for discrete actions.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    frame_stack: int = 1
    num_actions: int = 0
    action_shape: tuple[int, ...] = ()

    @property
    def is_discrete(self) -> bool:
        """Whether actions are integers 0 .. num_actions - 1."""
        return self.num_actions > 0

    @property
    def observation_size(self) -> int:
        """Numbers that a network sees at once, the whole frame stack included."""
        return math.prod(self.observation_shape) * self.frame_stack

    @property
    def action_size(self) -> int:
        """Numbers of one continuous action; 1 for a discrete one."""
        return math.prod(self.action_shape)

    @property
    def action_dtype(self) -> str:
        """`int64` for discrete actions, `float32` for continuous ones."""
        return "int64" if self.is_discrete else "float32"


def signature_of(spec: EnvSpec) -> Signature:
    """Return the columns every stream of an environment carries, before what an agent adds."""
    image = len(spec.observation_shape) >= 2
    return (
        ColumnSpec("observation", spec.observation_dtype, spec.observation_shape, Codec.LZ4 if image else Codec.RAW),
        ColumnSpec("action", spec.action_dtype, spec.action_shape),
        ColumnSpec("reward", "float32", ()),
        ColumnSpec("terminated", "bool", ()),
        ColumnSpec("truncated", "bool", ()),
        ColumnSpec("is_first", "bool", ()),
    )


def column_names(signature: Sequence[ColumnSpec]) -> tuple[str, ...]:
    """Return the names of a signature's columns in order."""
    return tuple(column.name for column in signature)
