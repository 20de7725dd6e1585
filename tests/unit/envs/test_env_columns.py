"""Observations and actions of an environment as columns of a table, in its own form and in that of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.replay.transfer.env_columns import EnvColumns, form_of, form_of_runs
from tidemill.replay.transfer.episodes import FORMS, Form

_DISCRETE, _BOX = spaces.Discrete(3), spaces.Box(-1, 1, (2,))
_KITCHEN = spaces.Dict(
    {
        "Bottom burner": spaces.Box(-5, 5, (2, 2), np.float64),
        "light-switch": spaces.Discrete(3, start=1),
        "mission": spaces.Text(9),
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "arm": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[4, 5]))),
    }
)


def _batch(values: list[Any]) -> Any:  # noqa: ANN401 - a nest
    """Return values of a space as Minari stores an episode: a nest of arrays, and of lists of text."""
    if isinstance(values[0], dict):
        return {key: _batch([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_batch(list(part)) for part in zip(*values, strict=True))
    return values if isinstance(values[0], str) else np.array(values)


def _samples(space: Space[Any], count: int = 4) -> Any:  # noqa: ANN401 - a nest
    space.seed(1)
    return _batch([space.sample() for _ in range(count)])


def _assert_equal(one: Any, other: Any) -> None:  # noqa: ANN401 - nests
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, dict | tuple):
        parts = one if isinstance(one, dict) else range(len(one))
        for key in parts:
            _assert_equal(one[key], other[key])
        return
    assert one.dtype == other.dtype
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "space",
    [_BOX, spaces.Box(-9, 9, (2, 3), np.float64), spaces.MultiBinary((2, 2)), spaces.Dict(dict(_KITCHEN.spaces))],
    ids=["box", "float64", "binary", "dict"],
)
def test_observations_come_back_as_they_were(space: Space[Any], form: Form) -> None:
    """From columns of the shapes that are announced; all but what is text."""
    if form == "flat" and isinstance(space, spaces.Dict):
        space = spaces.Dict({key: part for key, part in space.spaces.items() if key != "mission"})
    columns, values = EnvColumns(space, _DISCRETE, form), _samples(space)
    found = columns.observations(values)
    assert {name: column.shape for name, column in found.items()} == {
        name: (4, *shape) for name, shape in columns.shapes[0].items()
    }
    if isinstance(values, dict):
        values.pop("mission", None)
    _assert_equal(columns.returned(found), values)
    assert columns.spaces[0].contains(_first(columns.returned(found)))


def _first(values: Any) -> Any:  # noqa: ANN401 - a nest
    if isinstance(values, dict):
        return {key: _first(value) for key, value in values.items()}
    return tuple(map(_first, values)) if isinstance(values, tuple) else values[0]


@pytest.mark.parametrize("form", ["env", "run"])
def test_parts_are_named_as_in_a_run(form: Form) -> None:
    """Whatever their keys; text is left out and told; discrete parts are one-hot in the form of a run."""
    columns = EnvColumns(_KITCHEN, _DISCRETE, form)
    found = columns.observations(_samples(_KITCHEN))
    names = ["arm__0", "arm__1", "bottom_burner", "camera", "light_switch"]
    assert sorted(found) == [f"observation__{name}" for name in names]
    assert columns.notes == ("left out what is text: observation__mission",)
    assert found["observation__light_switch"].shape == ((4, 3) if form == "run" else (4,))
    assert found["observation__camera"].dtype == np.uint8


@pytest.mark.parametrize(
    "space, taken, stored",
    [
        (spaces.Box(-2, 2, (1,)), [[2.0], [-1.0]], [[1.0], [-0.5]]),
        (spaces.Box(np.zeros(2, np.float32), np.array([1, 0], np.float32)), [[0.25, 0.0]], [[-0.5, 0.0]]),
        (spaces.Box(-4, 4, (), np.float64), [1.0, 9.0], [[0.25], [1.0]]),
        (spaces.Discrete(3, start=1), [1, 3], [0, 2]),
        (spaces.MultiDiscrete(np.array([[2], [3]]), start=np.array([[1], [-1]])), [[[2], [1]]], [[1, 2]]),
        (spaces.MultiBinary(2), [[0, 1]], [[0, 1]]),
    ],
)
def test_actions_of_a_run_are_scaled_or_from_0(space: Space[Any], taken: list[Any], stored: list[Any]) -> None:
    """And back; what is beyond a bound is clipped to it."""
    columns = EnvColumns(_BOX, space, "run")
    given = np.array(taken, space.dtype)
    action = columns.actions(given)["action"]
    assert action.tolist() == stored
    assert action.dtype == (np.float32 if isinstance(space, spaces.Box) else np.int64)
    bounded = np.clip(given, space.low, space.high) if isinstance(space, spaces.Box) else given
    np.testing.assert_array_equal(columns.taken({"action": action}), bounded)
    assert EnvColumns(_BOX, space, "env").actions(given)["action"] is given


@pytest.mark.parametrize(
    "space, action, form",
    [
        (_BOX, _DISCRETE, ""),
        (_BOX, spaces.Discrete(3, start=1), "run"),
        (_BOX, spaces.Box(-2, 2, (1,)), "run"),
        (_KITCHEN, _BOX, "run"),
        (spaces.Discrete(16), _DISCRETE, "flat"),
        (spaces.Sequence(_BOX), _DISCRETE, ""),
        (_BOX, spaces.Box(-np.inf, np.inf, (2,)), ""),
    ],
)
def test_form_of_a_run_is_told_where_it_is_another(space: Space[Any], action: Space[Any], form: str) -> None:
    """Where a run cannot have these spaces there is none."""
    assert form_of_runs(EnvColumns(space, action, "env")) == form


@pytest.mark.parametrize("form", FORMS)
def test_form_is_found_by_the_columns(form: Form) -> None:
    """Where shapes differ, as those of discrete parts: then actions have the unit of that form."""
    space = spaces.Dict({"door": spaces.Discrete(3), "arm": _BOX})
    wanted = EnvColumns(space, spaces.Discrete(3, start=1), form)
    found = form_of(*wanted.spaces, wanted.shapes[0] | wanted.shapes[1])
    assert found.form == form


def test_mistakes_are_told() -> None:
    """Keys that become one name, an unknown form, a space that no run has."""
    with pytest.raises(InvalidArgument, match=naming("'observation__a_b'")):
        EnvColumns(spaces.Dict({"a b": _BOX, "A-b": _BOX}), _DISCRETE, "env")
    with pytest.raises(InvalidArgument, match=naming("'runs' env run flat")):
        EnvColumns(_BOX, _DISCRETE, "runs")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'flat'"):
        EnvColumns(_DISCRETE, _DISCRETE, "run")
    with pytest.raises(InvalidArgument, match="no fixed size"):
        EnvColumns(spaces.Sequence(_BOX), _DISCRETE, "flat")
    with pytest.raises(InvalidArgument, match="0 to 2"):
        EnvColumns(_BOX, _DISCRETE, "run").actions(np.array([3]))
