"""The columns that an environment's observations and actions have in a table, and the way back.

In the form `env` they are as the environment has them. In the form `run` they are as actors store them: continuous
actions scaled to [-1, 1], discrete ones from 0, each part of an observation a float32 vector or an image, discrete
parts one-hot. The form `flat` is that of a run with `env.flatten`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tidemill.arrays import Array
from tidemill.envs.actions import action_adapter, is_as_stored, stored_action
from tidemill.envs.observations import (
    has_fixed_size,
    is_text,
    observation_format,
    returned_part,
    space_leaves,
    stored_part,
)
from tidemill.errors import InvalidArgument
from tidemill.observation_parts import leaves, part_name, stored
from tidemill.replay.transfer.episodes import ACTION, FORMS, OBSERVATION, Form
from tidemill.types import part_column

Shapes = dict[str, tuple[int, ...]]


class EnvColumns:
    """Conversion between the values of an environment and columns of one form, both in batches of steps."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], form: Form) -> None:
        """Take the spaces.

        Raises:
            InvalidArgument: There is no such form, or values of these spaces cannot have it.
        """
        if form not in FORMS:
            raise InvalidArgument(f"form is {form!r}, allowed: {', '.join(FORMS)}")
        self._spaces, self.form = (observation_space, action_space), form
        found = space_leaves(observation_space, OBSERVATION)
        self.texts = () if form == "flat" else tuple(name for name, part in found if is_text(part))
        self._parts = {name: part for name, part in found if name not in self.texts}
        names = [name for name, _ in (*found, *space_leaves(action_space, ACTION))]
        if alike := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgument(f"several parts share the column name {alike[0]!r}: lower-case letters, digits and _")
        self._actions = None if form == "env" else action_adapter(action_space)
        self.shapes = self._observation_shapes(), self._action_shapes()

    @property
    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Spaces of observations, which lack what is text, and of actions."""
        observation, action = self._spaces
        if self.texts:
            observation = as_space(self._nested(observation, OBSERVATION, lambda _, part: part))
        return observation, action

    @property
    def notes(self) -> tuple[str, ...]:
        """Remark for a person about what is left out, if anything is."""
        return (f"left out what is text: {', '.join(self.texts)}",) if self.texts else ()

    def observations(self, values: Any) -> dict[str, Array]:  # noqa: ANN401 - a nest of arrays
        """Return the columns of observations, each [N, ...], of what the environment returned."""
        found = {name: value for name, value in leaves(values, OBSERVATION, self.texts) if name not in self.texts}
        if self.form == "env":
            return {name: np.asarray(value) for name, value in found.items()}
        if self.form == "run" and OBSERVATION in found:
            return {OBSERVATION: stored(found[OBSERVATION], self.format.dtype)}
        is_flat = self.form == "flat"
        columns = {name: stored_part(part, found[name], name, as_vector=is_flat) for name, part in self._parts.items()}
        return {OBSERVATION: np.concatenate(list(columns.values()), axis=1)} if is_flat else columns

    def actions(self, values: Any) -> dict[str, Array]:  # noqa: ANN401 - a nest of arrays
        """Return the columns of actions, each [N, ...], of those that the environment took."""
        if self._actions is None:
            return {name: np.asarray(value) for name, value in leaves(values, ACTION)}
        return {ACTION: stored_action(self._spaces[1], np.asarray(values))}

    def returned(self, columns: Mapping[str, Array]) -> Any:  # noqa: ANN401 - a nest of arrays
        """Return observations as the environment returned them, of their columns; what is text is left out."""
        if self.form == "env":
            return self._nested(self._spaces[0], OBSERVATION, lambda name, _: columns[name])
        if self.form == "flat":
            ends = np.cumsum([spaces.flatdim(part) for part in self._parts.values()])[:-1]
            columns = dict(zip(self._parts, np.split(columns[OBSERVATION], ends, axis=1), strict=True))
        return self._nested(self._spaces[0], OBSERVATION, lambda name, part: returned_part(part, columns[name]))

    def taken(self, columns: Mapping[str, Array]) -> Any:  # noqa: ANN401 - a nest of arrays
        """Return actions as the environment took them, of their columns."""
        if self._actions is None:
            return self._nested(self._spaces[1], ACTION, lambda name, _: columns[name])
        return self._actions.convert(columns[ACTION])

    def _observation_shapes(self) -> Shapes:
        if self.form == "env":
            return {name: part.shape or () for name, part in self._parts.items()}
        if self.form == "flat":
            if not has_fixed_size(self._spaces[0]):
                raise InvalidArgument(f"form is 'flat', but observations of {self._spaces[0]} have no fixed size")
            return {OBSERVATION: (spaces.flatdim(self._spaces[0]),)}
        self.format = observation_format(self._spaces[0], "choose the form 'flat' for one float32 vector")
        parts = {part_column(part.name): part.shape for part in self.format.parts}
        return parts or {OBSERVATION: self.format.shape}

    def _action_shapes(self) -> Shapes:
        if self._actions is None:
            return {name: part.shape or () for name, part in space_leaves(self._spaces[1], ACTION)}
        return {ACTION: self._actions.shape}

    def _nested(self, space: Space[Any], name: str, value_of: Callable[[str, Space[Any]], Any]) -> Any:  # noqa: ANN401
        """Return the value of a function of the name and space of each leaf but text, nested like the space."""
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            return value_of(name, space)
        keyed = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        named = ((key, f"{name}__{part_name(key)}", part) for key, part in keyed)
        parts = {key: self._nested(part, path, value_of) for key, path, part in named if path not in self.texts}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def form_of(observation_space: Space[Any], action_space: Space[Any], found: Shapes) -> EnvColumns:
    """Return the conversion of columns of these shapes, in the form that they have; in the form `env` if they fit none.

    Raises:
        InvalidArgument: The actions may have either of two units.
    """
    own = EnvColumns(observation_space, action_space, "env")
    fitting = [each for each in (own, *_of_runs(observation_space, action_space)) if _all(each.shapes) == found]
    if own in fitting and len(fitting) > 1 and not is_as_stored(action_space):
        raise InvalidArgument(
            f"actions of {action_space} may be stored as they are, or as a run stores them, in [-1, 1] or from 0: "
            "choose form run for the table of a run, or env for actions as the environment takes them"
        )
    return fitting[0] if fitting else own


def form_of_runs(own: EnvColumns) -> str:
    """Return the form of a run with these spaces; empty if it is the environment's own, or if there is no such run."""
    for run in _of_runs(*own.spaces):
        return "" if run.shapes == own.shapes and is_as_stored(own.spaces[1]) else run.form
    return ""


def _all(shapes: tuple[Shapes, Shapes]) -> Shapes:
    return {**shapes[0], **shapes[1]}


def _of_runs(observation_space: Space[Any], action_space: Space[Any]) -> Iterator[EnvColumns]:
    """Yield the columns of a run, without and with `env.flatten`, where a run can have them."""
    for form in FORMS[1:]:
        with suppress(InvalidArgument):
            yield EnvColumns(observation_space, action_space, form)


def as_space(values: Any) -> Any:  # noqa: ANN401 - a nest of spaces
    """Return a nest of spaces as one space."""
    if isinstance(values, dict):
        return spaces.Dict({key: as_space(value) for key, value in values.items()})
    return spaces.Tuple([as_space(value) for value in values]) if isinstance(values, tuple) else values
