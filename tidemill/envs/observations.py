"""Conversion of observation spaces to the shape and dtype of stored observations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidemill.envs.checks import check_finite
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.observation_parts import in_order, leaves, pack, part_name, stored, tuple_paths, unpack
from tidemill.types import OBSERVATION, ObservationPart, PartSpace


@dataclass(frozen=True)
class ObservationFormat:
    """Stored form of one observation.

    Attributes:
        shape: Of one observation, or (bytes,) of one of several parts.
        dtype: `uint8` for images of bytes and for several parts, `float32` for everything else.
        parts: Named arrays of a Dict or Tuple; empty for one array.
        spaces: The space of each part, by its name; of a MultiBinary, with the name "".
        texts: Names of parts that are text, which is neither stored nor seen.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[ObservationPart, ...] = ()
    spaces: Mapping[str, gymnasium.Space[Any]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    @property
    def part_spaces(self) -> tuple[PartSpace, ...]:
        """What the environment returns for the parts that are vectors; those of a space of somebody's own left out."""
        found = (_part_space(name, space) for name, space in self.spaces.items())
        return tuple(space for space in found if space is not None)

    def pack(self, observation: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - a nest of the user's
        """Return the bytes of one observation of several parts, [bytes]; discrete parts one-hot.

        Raises:
            InvalidArgument: A part is missing, unknown or has another shape.
        """
        found = leaves(observation, tuples=self._tuples)
        values = {name: self._numbers(name, value) for name, value in found if name not in self.texts}
        packed: NDArray[np.uint8] = pack(self.parts, values)
        return packed

    def pack_batch(self, observation: Any, count: int) -> NDArray[np.uint8]:  # noqa: ANN401
        """Return the bytes of `count` observations, [count, bytes], whose leaves are batches; raises as `pack`."""
        values = {}
        for name, value in leaves(observation, whole=self.texts):
            if name in self.texts:
                continue
            rows = np.asarray(value)
            values[name] = rows
            if name in self.spaces and not _is_image(self.spaces[name]):
                values[name] = np.array([self._numbers(name, row) for row in rows[:count]])
        packed: NDArray[np.uint8] = pack(self.parts, values, (count,))
        return packed

    def pack_row(self, observation: Any, index: int) -> NDArray[np.uint8]:  # noqa: ANN401
        """Return the bytes of one of several observations, [bytes], whose leaves are batches; raises as `pack`."""
        values = {}
        for name, value in leaves(observation, whole=self.texts):
            if name in self.texts:
                continue
            rows = np.asarray(value)
            if index >= (len(rows) if rows.ndim else 0):
                raise InvalidArgument(
                    f"part {name!r} of the observation has shape {rows.shape}, allowed: a row for each"
                )
            values[name] = self._numbers(name, rows[index])
        packed: NDArray[np.uint8] = pack(self.parts, values)
        return packed

    @cached_property
    def _tuples(self) -> set[str]:
        return tuple_paths((*self.spaces, *self.texts))

    def _numbers(self, name: str, value: Any) -> Any:  # noqa: ANN401
        """Return a value of a part as it is stored; one of an unknown part as it is."""
        space = self.spaces.get(name)
        return value if space is None or _is_image(space) else _numbers(space, value, name)

    def check_finite(
        self, observation: NDArray[Any], reward: NDArray[np.floating[Any]], lengths: NDArray[np.int64]
    ) -> None:
        """Raise EnvFailed if a number of any observation or reward is not finite; see `tidemill.envs.checks`."""
        if not self.parts:
            check_finite(observation, reward, lengths)
            return
        for name, part in unpack(self.parts, observation).items():
            check_finite(part, reward, lengths, f"{OBSERVATION}.{name}")


def _numbers(space: gymnasium.Space[Any], value: Any, name: str = "") -> NDArray[np.float32]:  # noqa: ANN401
    """Return a value of a space as a vector, float32 [numbers], one-hot if it is discrete.

    Raises:
        InvalidArgument: The value is not of the space; the message calls it the part `name` of the observation.
    """
    what = f"part {name!r} of the observation" if name else "observation"
    if isinstance(space, spaces.Box):
        array = stored(value, np.uint8 if _is_image(space) else np.float32, what)
        if array.size != math.prod(space.shape):
            raise InvalidArgument(f"{what} has shape {array.shape}, allowed: {space.shape}")
        return array.reshape(-1).astype(np.float32, copy=False)
    if isinstance(space, spaces.Discrete):  # `contains` and `flatten` take several times as long
        given = np.asarray(value)
        place = int(given.item()) - int(space.start) if given.size == 1 and given.dtype.kind in "biu" else -1
        if 0 <= place < space.n:
            one_hot = np.zeros(int(space.n), np.float32)
            one_hot[place] = 1
            return one_hot
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        given = np.asarray(value)
        if given.dtype.kind in ("biuf" if isinstance(space, spaces.MultiBinary) else "biu"):  # as gymnasium takes them
            with np.errstate(invalid="ignore"):
                number = given.astype(space.dtype)
            if (number == given).all() and space.contains(number):
                return np.asarray(spaces.flatten(space, number), np.float32)
    elif space.contains(value):
        return np.asarray(spaces.flatten(space, value), np.float32)
    raise InvalidArgument(f"{what} with the value {value!r}, allowed: {space}")


def stored_part(space: gymnasium.Space[Any], values: Any, name: str, *, as_vector: bool = False) -> NDArray[Any]:  # noqa: ANN401
    """Return N values of a part as they are stored, [N, ...], images as vectors, too, if asked for; see `_numbers`."""
    if _is_image(space) and not as_vector:
        return stored(values, np.uint8, f"part {name!r} of the observation")
    return np.array([_numbers(space, value, name) for value in values])


def returned_part(space: gymnasium.Space[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return N stored values of a part, [N, ...], as the environment returned them."""
    if isinstance(space, spaces.Box):
        return values.reshape(len(values), *space.shape).astype(space.dtype)
    return np.array([spaces.unflatten(space, value.reshape(-1)) for value in values])


def _vector(space: gymnasium.Space[Any], value: Any, path: str = "") -> NDArray[np.float32]:  # noqa: ANN401
    """Return an observation in gymnasium's order of a flat vector; raises as `_numbers`."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _numbers(space, value, path)
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    prefix = f"{path}__" if path else ""
    return np.concatenate([_vector(part, value[key], prefix + part_name(key)) for key, part in parts])


def observation_format(
    space: gymnasium.Space[Any], flatten: str = "set env.flatten for one float32 vector"
) -> ObservationFormat:
    """Return how observations of a space are stored.

    Args:
        space: Of one observation.
        flatten: How to make a vector of a space of fixed size, for the message.

    Raises:
        ConfigError: The space is neither an array of at least one axis nor a Dict or Tuple of parts of fixed size; the
            message says how to flatten it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _format_of_parts(space)
    if isinstance(space, spaces.MultiBinary):
        return ObservationFormat(space.shape, "float32", spaces={"": space})
    if not isinstance(space, spaces.Box) or not space.shape:
        fixed = "return an array of fixed size"
        raise ConfigError(
            f"observations of {space} are not an array with at least one axis; "
            f"allowed: Box with an axis, MultiBinary, Dict and Tuple; {flatten if has_fixed_size(space) else fixed}"
        )
    return ObservationFormat(space.shape, "uint8" if _is_image(space) else "float32")


def _format_of_parts(space: spaces.Dict | spaces.Tuple[Any]) -> ObservationFormat:
    every = space_leaves(space)
    found = [(name, part) for name, part in every if not is_text(part)]
    names = [name for name, _ in found]
    for name, part in found:
        problem = ""
        if not has_fixed_size(part):
            problem = "has no fixed size"
        elif names.count(name) > 1:
            problem = "shares its name with another part in lower-case letters, digits and _"
        elif not re.fullmatch(_NAME, name):
            problem = f"has the name {name!r}, which does not match {_NAME}"
        if problem:
            raise ConfigError(f"part {name!r} of observations of {space}, {part}, {problem}; change the environment")
    parts = in_order([_part(name, part) for name, part in found])
    size = sum(part.step_bytes for part in parts)
    texts = tuple(name for name, part in every if is_text(part))
    return ObservationFormat((size,), "uint8", parts, dict(found), texts)


_NAME = "[a-z0-9_]{1,50}"
"""What the name of a part may be, so that its column may be called so."""


def space_leaves(space: gymnasium.Space[Any], path: str = "") -> list[tuple[str, gymnasium.Space[Any]]]:
    """Return the name and the space of each leaf of a Dict or Tuple, named as `leaves` names its values."""
    return list(leaves(_nest(space), path))


def _nest(space: gymnasium.Space[Any]) -> Any:  # noqa: ANN401 - nested like the space
    """Return the spaces of a Dict or Tuple, nested as its values are."""
    if isinstance(space, spaces.Dict):
        return {key: _nest(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(part) for part in space.spaces)
    return space


def _part(name: str, space: gymnasium.Space[Any]) -> ObservationPart:
    if _is_image(space):
        assert space.shape is not None
        return ObservationPart(name, "uint8", space.shape)
    return ObservationPart(name, "float32", (spaces.flatdim(space),))


def _part_space(name: str, space: gymnasium.Space[Any]) -> PartSpace | None:
    """Return the description of a part as an environment returns it; None if that is an image, or not known."""
    if isinstance(space, spaces.Discrete):
        return PartSpace(name, (), (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        options, starts = (tuple(map(int, each.reshape(-1))) for each in (space.nvec, space.start))
        return PartSpace(name, space.shape, options, starts)
    if isinstance(space, spaces.MultiBinary):
        return PartSpace(name, space.shape, is_binary=True)
    return PartSpace(name, space.shape) if isinstance(space, spaces.Box) and not _is_image(space) else None


def is_text(space: gymnasium.Space[Any]) -> bool:
    """True if a space's values are text. Minigrid's missions are, in a space class of minigrid."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def has_fixed_size(space: gymnasium.Space[Any]) -> bool:
    """True if a space's values can be flattened to a vector of fixed size. A user's space class may not say."""
    try:
        return space.is_np_flattenable
    except NotImplementedError:
        return False


def _is_image(space: gymnasium.Space[Any]) -> bool:
    """True if a space's values are uint8 arrays of at least two dimensions."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def flattened(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return an environment whose observations are one vector: dicts and tuples joined, discrete parts one-hot.

    Raises:
        ConfigError: They have no fixed size, as those of a graph or a sequence.
    """
    space = env.observation_space
    if not has_fixed_size(space):
        raise ConfigError(
            f"observations of {space} have no fixed size, and env.flatten needs one; "
            "wrap the environment so that it returns an array"
        )
    # FlattenObservation would cast what its space lacks, or count it from the end
    flat = spaces.flatten_space(space)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: _vector(space, observation), flat)


def select(env: gymnasium.Env[Any, Any], positions: Sequence[int]) -> gymnasium.Env[Any, Any]:
    """Return an environment that shows only the numbers at these positions of its vector observation.

    Raises:
        ConfigError: Observations are not vectors, or are shorter.
    """
    space, chosen = env.observation_space, np.array(positions)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or chosen.max() >= space.shape[0]:
        raise ConfigError(
            f"env.observation_indices is {tuple(positions)}, but observations are {space}: "
            "allowed are positions in a vector (see also env.flatten)"
        )
    part = spaces.Box(space.low[chosen], space.high[chosen], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[chosen], part)
