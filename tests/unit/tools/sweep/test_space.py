"""The space of a sweep: what its file may say, and the values that are drawn from it."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.distribution import fits, fits_continuous
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.services.tools.sweep.space import draw, grid, parse_space

_DRAWS = 4000


def _drawn(section: dict[str, object], seed: int = 3) -> np.ndarray:
    parameters = parse_space(section)
    return np.array([draw(parameters, seed, number)[parameters[0].name] for number in range(_DRAWS)])


def test_uniform_values_are_uniform() -> None:
    """Kolmogorov-Smirnov against the uniform distribution between both ends."""
    values = _drawn({"agent.gamma": {"uniform": [0.5, 1.5]}})
    assert fits_continuous(values, lambda value: value - 0.5)


def test_logarithms_are_uniform() -> None:
    """Numbers that YAML reads as text, as 1e-5, are numbers."""
    values = _drawn({"agent.learning_rate": {"log": ["1e-5", 0.1]}})
    assert fits_continuous(np.log10(values), lambda value: (value + 5) / 4)


def test_whole_numbers_and_choices_have_equal_shares() -> None:
    """Both ends included; chi-square."""
    sections: list[dict[str, object]] = [{"agent.n_step": {"int": [1, 5]}}, {"agent.n_step": [1, 2, 3, 4, 5]}]
    for section in sections:
        values = _drawn(section)
        counts = [int((values == value).sum()) for value in range(1, 6)]
        assert sum(counts) == _DRAWS
        assert fits(counts, [0.2] * 5)


def test_whole_numbers_on_a_logarithmic_axis_have_the_share_between_their_halves() -> None:
    """For 1 to 4: log(1.5/0.5), log(2.5/1.5), log(3.5/2.5), log(4.5/3.5) of log(4.5/0.5)."""
    values = _drawn({"agent.batch_size": {"log_int": [1, 4]}})
    shares = [math.log((k + 0.5) / (k - 0.5)) / math.log(9) for k in range(1, 5)]
    counts = [int((values == value).sum()) for value in range(1, 5)]
    assert fits(counts, shares)


@given(seed=st.integers(0, 2**32), number=st.integers(0, 10**6), low=st.floats(1e-6, 1.0), width=st.floats(1e-6, 10.0))
def test_values_lie_in_their_range_and_repeat(seed: int, number: int, low: float, width: float) -> None:
    """A trial's values depend on the seed and its number alone."""
    section = {
        "a.log": {"log": [low, low + width]},
        "a.uniform": {"uniform": [low, low + width]},
        "a.int": {"int": [1, 1 + math.ceil(width)]},
        "a.log_int": {"log_int": [1, 1 + math.ceil(width)]},
        "a.choice": ["x", [1, 2], None],
    }
    parameters = parse_space(section)
    values = draw(parameters, seed, number)
    assert values == draw(parameters, seed, number)
    for parameter in parameters[:4]:
        assert parameter.values[0] <= values[parameter.name] <= parameter.values[1]
    assert isinstance(values["a.int"], int)
    assert isinstance(values["a.log_int"], int)
    assert values["a.choice"] in ["x", [1, 2], None]


def test_grid_has_every_combination_once() -> None:
    """The last setting's values change first."""
    values = list(grid(parse_space({"agent.n_step": [1, 3], "env.id": ["A", "B"]})))
    assert [tuple(each.values()) for each in values] == [(1, "A"), (1, "B"), (3, "A"), (3, "B")]


def test_grid_of_a_range_is_refused() -> None:
    """It has no end."""
    with pytest.raises(ConfigError, match=naming("space.agent.gamma")):
        list(grid(parse_space({"agent.gamma": {"uniform": [0, 1]}})))


@pytest.mark.parametrize(
    "section, message",
    [
        (None, "space None"),
        ({}, "space {}"),
        ({"agent.gamma": 0.9}, "space.agent.gamma 0.9 list uniform"),
        ({"agent.gamma": []}, "space.agent.gamma []"),
        ({"agent.gamma": {"unifrom": [0, 1]}}, "'uniform'"),
        ({"agent.gamma": {"uniform": [1]}}, "low high"),
        ({"agent.gamma": {"uniform": 1}}, "low high"),
        ({"agent.n_step": {"int": "12"}}, "'12' low high"),
        ({"agent.gamma": {"uniform": [1, 1]}}, "low high"),
        ({"agent.gamma": {"uniform": [0, float("nan")]}}, "low high"),
        ({"agent.gamma": {"log": [0, 1]}}, "0"),
        ({"env.kwargs.day": ["a", datetime.date(2020, 1, 1), "b"]}, "space.env.kwargs.day[1] '2020-01-01' quotes"),
        ({"agent.gamma": {"int": [0, 1.5]}}, "whole"),
    ],
)
def test_wrong_space_is_refused_with_what_is_allowed(section: object, message: str) -> None:
    """The message names the setting and its value."""
    with pytest.raises(ConfigError, match=naming(message)):
        parse_space(section)
