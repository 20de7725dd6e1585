"""Conversion of action spaces to discrete actions 0 .. n - 1, one or several, or continuous numbers in [-1, 1]."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from tidemill.errors import ConfigError, InvalidArgument

_MAX_JOINT_ACTIONS = 65_536
_LARGEST_BOUND = 1e9  # beyond it a bound stands for none: the largest number of its type, for one


def as_batch(action: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a batch of actions as an array; raises InvalidArgument if it has another shape."""
    batch = np.asarray(action)
    if batch.shape != shape:
        raise InvalidArgument(f"action has shape {batch.shape}, allowed: {shape}")
    return batch


def as_choices(action: NDArray[Any], largest: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a batch of discrete actions as int64; bools are 0 and 1.

    Raises:
        InvalidArgument: One is not an integer from 0 to `largest`.
    """
    if action.dtype.kind not in "biu" or (action < 0).any() or (action > largest).any():
        allowed = np.asarray(largest).tolist()
        raise InvalidArgument(f"actions are {action.tolist()}, allowed: integers from 0 to {allowed}")
    return action.astype(np.int64, copy=False)


class ActionAdapter(Protocol):
    """Translates a batch of the agent's actions to what each environment takes."""

    @property
    def num_actions(self) -> int:
        """Discrete actions; 0 for continuous ones and for several choices."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Options of each of several choices; empty for other actions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one continuous action, (1,) where its space has none; `()` for discrete ones, (D,) for D choices."""

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the action of each environment, [N, ...], for a batch [N, *shape]."""


def action_adapter(space: gymnasium.Space[Any], *, joint: bool = False) -> ActionAdapter:
    """Return the adapter of an action space.

    Args:
        space: Of one environment.
        joint: Whether every combination of several choices is one discrete action.

    Raises:
        ConfigError: The space is unbounded, too large or of a kind that no agent here can act in.
    """
    if isinstance(space, spaces.Discrete):
        return _Discrete(np.arange(space.start, space.start + space.n, dtype=np.int64))
    if isinstance(space, spaces.MultiDiscrete):
        return _several(space, space.nvec, space.start, joint=joint)
    if isinstance(space, spaces.MultiBinary):
        return _several(space, np.full(space.shape, 2), np.zeros(space.shape, np.int64), joint=joint)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _Continuous(space)
    raise ConfigError(
        f"actions of {space} are not supported; "
        "allowed: Discrete, MultiDiscrete, MultiBinary and a bounded Box of floats"
    )


def is_as_stored(space: gymnasium.Space[Any]) -> bool:
    """True if an environment takes the numbers that are stored: from -1 to 1, or from 0 if they are discrete."""
    if isinstance(space, spaces.Box):
        return bool((space.low == -1).all() and (space.high == 1).all())
    return not np.any(getattr(space, "start", 0))


def stored_action(space: gymnasium.Space[Any], taken: NDArray[Any]) -> NDArray[Any]:
    """Return actions that environments took, [N, ...], as they are stored: what `action_adapter` converts to them.

    Raises:
        InvalidArgument: A number is not finite, or a choice is not whole or not of the space.
        ConfigError: No agent can act in the space.
    """
    adapter = action_adapter(space)
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        half = (high - low) / 2
        scaled = np.divide(taken - (high + low) / 2, half, out=np.zeros(taken.shape), where=half > 0)
        action = np.clip(scaled, -1, 1).astype(np.float32)
    else:
        with np.errstate(invalid="ignore"):  # of what is not finite
            whole = taken.astype(np.int64)
        if (fractions := taken[whole != taken]).size:
            raise InvalidArgument(f"an action has {fractions[0]}, allowed: whole numbers, since the space is {space}")
        action = whole - getattr(space, "start", 0)
    action = action.reshape(len(taken), *adapter.shape)
    adapter.convert(action)
    return action


def _several(space: gymnasium.Space[Any], radices: NDArray[Any], start: NDArray[Any], *, joint: bool) -> ActionAdapter:
    return _Discrete(_joint_actions(radices, start, space)) if joint else _Choices(radices, start, space)


def _joint_actions(radices: NDArray[Any], start: NDArray[Any], space: gymnasium.Space[Any]) -> NDArray[Any]:
    """Return every combination, [num_actions, *radices.shape], in mixed radix, the last digit fastest."""
    size = int(np.prod(radices, dtype=np.float64))
    if size > _MAX_JOINT_ACTIONS:
        raise ConfigError(
            f"actions of {space} make {size} combinations, allowed with env.joint_actions: {_MAX_JOINT_ACTIONS}"
        )
    digits = np.stack(np.unravel_index(np.arange(size), radices.reshape(-1)), axis=-1)
    table: NDArray[Any] = digits.reshape(size, *radices.shape) + start
    return table.astype(space.dtype)


class _Discrete:
    """Integers 0 .. n - 1 that index a table of environment actions."""

    def __init__(self, table: NDArray[Any]) -> None:
        self._table = table
        self.num_actions = len(table)
        self.shape: tuple[int, ...] = ()
        self.sizes: tuple[int, ...] = ()

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        taken: NDArray[Any] = self._table[as_choices(action, self.num_actions - 1)]
        return taken


class _Choices:
    """Several integers at once, each in 0 .. its own number of options - 1."""

    def __init__(self, radices: NDArray[Any], start: NDArray[Any], space: gymnasium.Space[Any]) -> None:
        self.num_actions = 0
        self.sizes = tuple(int(size) for size in radices.reshape(-1))
        self.shape = (len(self.sizes),)
        self._largest, self._start = np.array(self.sizes) - 1, start.reshape(-1)
        self._space_shape, self._dtype = radices.shape, space.dtype

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        taken: NDArray[Any] = (as_choices(action, self._largest) + self._start).astype(self._dtype)
        return taken.reshape(len(action), *self._space_shape)


class _Continuous:
    """Values in [-1, 1], scaled linearly to the bounds of a Box."""

    def __init__(self, space: spaces.Box) -> None:
        largest = np.maximum(np.abs(space.low), np.abs(space.high)).max(initial=0)
        if not space.is_bounded("both") or largest > _LARGEST_BOUND:
            raise ConfigError(
                f"actions of {space} have no bounds to scale [-1, 1] to; give the action space finite bounds "
                f"between {-_LARGEST_BOUND:g} and {_LARGEST_BOUND:g}"
            )
        self._low, self._high = space.low, space.high
        self._space_shape = space.shape
        self._dtype = space.dtype
        # Bounds of -1 and 1 give a scale of 1 and a center of 0, so that such actions pass unchanged.
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._scale = ((high - low) / 2).astype(self._dtype)
        self._center = ((high + low) / 2).astype(self._dtype)
        self.num_actions = 0
        self.shape = space.shape or (1,)
        self.sizes: tuple[int, ...] = ()

    def convert(self, action: NDArray[Any]) -> NDArray[Any]:
        if not np.isfinite(action).all():
            raise InvalidArgument(f"actions are {action.tolist()}, allowed: finite numbers in [-1, 1]")
        scaled = (action * self._scale + self._center).astype(self._dtype, copy=False)
        clipped: NDArray[Any] = np.minimum(np.maximum(scaled, self._low), self._high)
        return clipped.reshape(len(action), *self._space_shape)
