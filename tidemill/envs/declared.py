"""Spaces of an environment that a program declares: a simulator, or the setting `env.spaces`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.errors import ConfigError
from tidemill.observation_parts import in_order, packed_dtype, part_name
from tidemill.settings.check import nearest
from tidemill.types import EnvSpec, ObservationPart

_ACTIONS = ("num_actions", "action_sizes", "action_shape")
_KEYS = ("observation", *_ACTIONS, "masks_actions")
_ARRAY = "a list of the dtype, float32 or uint8, and the shape, such as [float32, 4]"


def declared_spec(spaces: Mapping[str, Any], stack: int = 1, *, setting: str = "spaces") -> EnvSpec:
    """Return the specification of spaces in the form of the setting `env.spaces`, also of several parts.

    Args:
        spaces: `observation`, one of `num_actions`, `action_sizes` and `action_shape`, and for discrete actions
            `masks_actions`. An observation is a list of its dtype and its shape, or such a list for each of its parts.
        stack: Observations that the network sees at once, `env.observation_stack`; a simulator leaves it out.
        setting: Its name in messages.

    Raises:
        ConfigError: It is malformed; the message names the field, the value and what is allowed.
    """
    try:
        return _declared(spaces, stack)
    except ConfigError as error:
        raise ConfigError(f"{setting}{error}") from error


def _declared(spaces: Mapping[str, Any], stack: int) -> EnvSpec:
    """Return the specification; messages of errors begin behind the name of the setting."""
    for key in spaces:
        if key not in _KEYS:
            raise ConfigError(f" has {key!r}, allowed: {', '.join(_KEYS)}{nearest(key, list(_KEYS))}")
    kinds = [key for key in _ACTIONS if spaces.get(key)]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "no actions"
        raise ConfigError(f" has {found}, allowed: one of {', '.join(_ACTIONS)}")
    observation, masks = spaces.get("observation"), spaces.get("masks_actions", False)
    if not isinstance(masks, bool) or (masks and "action_shape" in kinds):
        raise ConfigError(f".masks_actions is {masks!r}, allowed: true or false, for discrete actions")
    sizes = _whole("action_sizes", spaces.get("action_sizes") or ())
    parts: tuple[ObservationPart, ...] = ()
    if isinstance(observation, Mapping):
        keys: dict[str, object] = {}
        for key in observation:
            name = part_name(key)
            if (other := keys.setdefault(name, key)) != key:
                raise ConfigError(f".observation has {other!r} and {key!r}, both stored as {name!r}: rename one")
        parts = in_order([_part(f"observation.{key}", name, observation[key]) for name, key in keys.items()])
        whole = ObservationPart("observation", "uint8", (packed_dtype(parts).itemsize,))
    else:
        whole = _part("observation", "observation", observation)
    count = _whole("num_actions", [spaces.get("num_actions") or 0], least=0)[0]
    return EnvSpec(
        observation_shape=whole.shape,
        observation_dtype=whole.dtype,
        frame_stack=stack,
        num_actions=count,
        action_shape=(len(sizes),) if sizes else _whole("action_shape", spaces.get("action_shape") or ()),
        masks_actions=masks,
        action_sizes=sizes,
        observation_parts=parts,
    )


def _part(field: str, name: str, value: Any) -> ObservationPart:  # noqa: ANN401 - what YAML has
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) >= 2
    if not is_list or value[0] not in ("float32", "uint8"):
        raise ConfigError(f".{field} is {value!r}, allowed: {_ARRAY}")
    return ObservationPart(name, value[0], _whole(field, value[1:]))


def _whole(field: str, numbers: Any, least: int = 1) -> tuple[int, ...]:  # noqa: ANN401 - what YAML has
    is_list = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_list or any(not isinstance(each, int) or isinstance(each, bool) or each < least for each in numbers):
        raise ConfigError(f".{field} has {numbers!r}, allowed: whole numbers of at least {least}")
    return tuple(numbers)
