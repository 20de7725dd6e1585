"""The nouns that two or more processes share: columns, signatures, streams and windows."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from tidemill.errors import InvalidArgument

DTYPES = frozenset(
    ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
)
"""NumPy dtypes a column may have."""


class Codec(enum.Enum):
    """Encoding of a column of a chunk."""

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
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


Signature = tuple[ColumnSpec, ...]
"""The columns of a table, in wire order."""


@dataclass(frozen=True)
class WindowSpec:
    """Steps of a stream that an item of an agent covers.

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


class ObservationPart(NamedTuple):
    """One named array of an observation that has several.

    Attributes:
        name: Keys of the Dict, or positions in the Tuple, that lead to it, joined by `__`, in lower case.
        dtype: `uint8` for images, `float32` for vectors.
        shape: Of one observation, without the stack.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        """Whether it consists of bytes."""
        return self.dtype == "uint8"

    @property
    def step_bytes(self) -> int:
        """Bytes of it in one observation."""
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))


class PartSpace(NamedTuple):
    """What an environment returns for a part of its observations that is stored as a float32 vector.

    Attributes:
        name: Of the part.
        shape: As the environment returns it: `()` for one number or one choice.
        options: Of each discrete choice; empty for numbers.
        starts: The first option of each choice.
        is_binary: Whether every number is 0 or 1.
    """

    name: str
    shape: tuple[int, ...]
    options: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    is_binary: bool = False

    @classmethod
    def from_document(cls, document: Sequence[Any]) -> PartSpace:
        """Return the description that a list of its fields holds."""
        name, shape, options, starts, is_binary = document
        return cls(name, tuple(shape), tuple(options), tuple(starts), bool(is_binary))


@dataclass(frozen=True)
class EnvSpec:
    """Facts about an environment that an agent needs to build its networks.

    Attributes:
        observation_shape: Shape of one observation, without the frame stack, e.g. (84, 84) or (8,).
        observation_dtype: `uint8` for images, `float32` for vectors.
        frame_stack: Observations the network sees at once; 1 means no stack and no stack axis.
        num_actions: Discrete actions; 0 for a continuous action space, and for several choices at once.
        action_shape: Shape of one continuous action in [-1, 1]; `()` for discrete actions, (D,) for D choices at once.
        masks_actions: Whether each step says which of the discrete actions are legal.
        action_sizes: Options of each of D discrete choices that one action makes at once; empty for other actions.
        observation_parts: Named arrays of observations that have several, vectors before images, each by name; empty
            for those of one array. An observation is then their bytes side by side, `uint8` of shape `(bytes,)`, which
            `declared_spec` counts; see `tidemill.observation_parts`.
        observation_spaces: What the environment itself returns for those of the parts that are vectors, where it is
            known. Two specifications that differ only in this are equal.

    Raises:
        InvalidArgument: The shape is not a tuple, or the dtype not a name.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    frame_stack: int = 1
    num_actions: int = 0
    action_shape: tuple[int, ...] = ()
    masks_actions: bool = False
    action_sizes: tuple[int, ...] = ()
    observation_parts: tuple[ObservationPart, ...] = ()
    observation_spaces: tuple[PartSpace, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.observation_shape, tuple):
            raise InvalidArgument(
                f"observation_shape is {self.observation_shape!r}, allowed: a tuple of whole numbers, such as (4,). "
                "For several parts: tidemill.declared_spec({'observation': {'camera': ['uint8', 64, 64, 3], 'speed': "
                "['float32', 2]}, 'num_actions': 4})"
            )
        if not isinstance(self.observation_dtype, str):
            raise InvalidArgument(
                f"observation_dtype is {self.observation_dtype!r}, allowed: a name, such as 'float32'"
            )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> EnvSpec:
        """Return the specification that a JSON document of its fields holds; an earlier version's may lack some.

        Raises:
            InvalidArgument, TypeError, ValueError: A field is unknown or has a value of another type.
        """
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        parts = [ObservationPart(name, dtype, tuple(shape)) for name, dtype, shape in read.get("observation_parts", ())]
        spaces = [PartSpace.from_document(space) for space in read.get("observation_spaces", ())]
        spec = cls(**read | {"observation_parts": tuple(parts), "observation_spaces": tuple(spaces)})
        _check_kinds(spec, *parts, *spaces)
        return spec

    @property
    def is_image(self) -> bool:
        """Whether an observation is one array of bytes, as images are."""
        return self.observation_dtype == "uint8" and not self.observation_parts

    @property
    def is_discrete(self) -> bool:
        """Whether an action is one integer, 0 .. num_actions - 1."""
        return self.num_actions > 0

    @property
    def action_options(self) -> tuple[int, ...]:
        """Options of each discrete choice that an action makes; empty for continuous actions."""
        return (self.num_actions,) if self.is_discrete else self.action_sizes

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
        """`int64` for discrete choices, `float32` for continuous actions."""
        return "int64" if self.action_options else "float32"


_LEAST = {"num_actions": 0, "starts": -math.inf}
"""Least numbers of fields that may have less than 1."""


def _check_kinds(*described: EnvSpec | ObservationPart | PartSpace) -> None:
    """Raise TypeError for a field that has another type than its annotation says, or that no column has."""
    for each in described:
        for name, kind in get_type_hints(type(each)).items():
            if not _fits(name, kind, value := getattr(each, name)):
                raise TypeError(f"{name} is {value!r}")


def _fits(name: str, kind: Any, value: Any) -> bool:  # noqa: ANN401 - what JSON has
    if kind == tuple[int, ...]:
        return type(value) is tuple and all(_fits(name, int, number) for number in value)
    if kind is int:
        return type(value) is int and value >= _LEAST.get(name, 1)
    if name.endswith("dtype"):
        return type(value) is str and value in DTYPES
    return kind not in (bool, str) or type(value) is kind


ACTION_MASK = "action_mask"
"""The column of an environment with action masks: whether each action was legal at the step's observation."""


def signature_of(spec: EnvSpec) -> Signature:
    """Return the columns every stream of an environment carries, before what an agent adds."""
    mask = (ColumnSpec(ACTION_MASK, "bool", (sum(spec.action_options),)),) if spec.masks_actions else ()
    return (
        *_observation_columns(spec),
        ColumnSpec("action", spec.action_dtype, spec.action_shape),
        ColumnSpec("reward", "float32", ()),
        ColumnSpec("terminated", "bool", ()),
        ColumnSpec("truncated", "bool", ()),
        ColumnSpec("is_first", "bool", ()),
        *mask,
    )


OBSERVATION = "observation"
"""The column of observations, and what those of their parts begin with."""


def part_column(name: str) -> str:
    """Return the name of the column of an observation's part."""
    return f"{OBSERVATION}__{name}"


def _observation_columns(spec: EnvSpec) -> Signature:
    named = tuple((part_column(part.name), part.dtype, part.shape) for part in spec.observation_parts)
    columns = named or ((OBSERVATION, spec.observation_dtype, spec.observation_shape),)
    return tuple(
        ColumnSpec(name, dtype, shape, Codec.LZ4 if len(shape) >= 2 else Codec.RAW) for name, dtype, shape in columns
    )


def column_names(signature: Sequence[ColumnSpec]) -> tuple[str, ...]:
    """Return the names of a signature's columns in order."""
    return tuple(column.name for column in signature)
