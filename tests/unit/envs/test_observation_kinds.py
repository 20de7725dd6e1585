"""Observations that their space does not announce are refused where they come in, never converted in silence."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from tests.support.naming import naming
from tidemill.envs.batched_env import BatchedEnv
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.observations import flattened
from tidemill.errors import FatalError, InvalidArgument
from tidemill.observation_parts import stored

_BYTES, _CLOCK, _CHOICE = spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(0, 2**40, (1,), np.int64), spaces.Discrete(4)

_WRONG: list[tuple[gymnasium.Space[Any], Any, str]] = [
    (_BYTES, np.full((2, 2), 0.7, np.float32), "float32 uint8 0 255"),
    (_BYTES, np.full((2, 2), np.nan), "float64 nan"),
    (_BYTES, np.full((2, 2), -1), "int64 -1 -1"),
    (_BYTES, np.full((2, 2), 300), "int64 300 300"),
    (_BYTES, np.full((2, 2), 1j), "complex128"),
    (_CLOCK, np.array([2**24 + 1]), "int64 16777217 float32"),
    (_CLOCK, np.array(["noon"]), "float32"),
    (_CLOCK, [[1], [1, 2]], "ValueError"),
]
_WRONG_CHOICES = [-1, 4, 7, 1.7, np.nan, 1.0, "1", np.array([1, 2]), np.int64(2**32 + 1)]
_SEVERAL: list[tuple[gymnasium.Space[Any], Any]] = [
    *[(_CHOICE, value) for value in _WRONG_CHOICES],
    (spaces.Discrete(4, dtype=np.int8), np.int64(257)),
    (spaces.MultiDiscrete([2, 3]), np.array([2, 0])),
    (spaces.MultiDiscrete([2, 3]), np.array([0.5, 0])),
    (spaces.MultiDiscrete([2, 3]), np.array([0])),
    *[(spaces.MultiBinary(2), np.array([value, 0])) for value in (256, 0.5, 256.0, np.nan, np.inf, 1j)],
    (spaces.Box(0, 2**40, (1,), np.int64), np.array([2**24 + 1])),
]


class _Says(gymnasium.Env[Any, Any]):
    """Observes what its space has at the reset, and something else at a step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any], value: object, *, at_reset: bool = False) -> None:
        self.observation_space, self._value, self._at_reset = space, value, at_reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        space = self.observation_space
        good = space.sample() if isinstance(space, spaces.Dict) else np.zeros(space.shape or (), np.uint8)
        return self._value if self._at_reset else good, {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._value, 0.0, False, False, {}


def _play(env: GymnasiumVectorEnv) -> None:
    env.reset(0)
    env.step(np.zeros(env.num_envs, np.int64))


@pytest.mark.parametrize("space, value, message", _WRONG)
@pytest.mark.parametrize("at_reset", [False, True])
def test_number_of_another_kind_ends_the_actor(
    space: gymnasium.Space[Any], value: object, message: str, *, at_reset: bool
) -> None:
    """The line says which environment, at which step, what came and what is allowed."""
    env = GymnasiumVectorEnv(lambda: _Says(space, value, at_reset=at_reset), 2)
    with pytest.raises(FatalError, match=naming("environment 0", int(not at_reset), message)):
        _play(env)


@pytest.mark.parametrize("part, value", _SEVERAL)
@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("at_reset", [False, True])
def test_part_that_its_space_lacks_ends_the_actor(
    part: gymnasium.Space[Any], value: object, *, flatten: bool, at_reset: bool
) -> None:
    """A discrete value that is rounded, wrapped or counted from the end would be another one; with env.flatten, too."""
    space = spaces.Dict({"a": spaces.Box(0, 1, (1,)), "b": part})
    wrong = {"a": np.zeros(1, np.float32), "b": value}
    says = _Says(space, wrong, at_reset=at_reset)
    env = GymnasiumVectorEnv(lambda: flattened(says) if flatten else says, 1)
    with pytest.raises(FatalError, match=naming("environment 0", "part 'b' observation")) as caught:
        _play(env)
    assert "returned an part" not in str(caught.value)


@pytest.mark.parametrize("flatten", [False, True])
def test_flags_may_be_floats(*, flatten: bool) -> None:
    """As gymnasium takes them: `np.zeros(n)` is the usual way to make some."""
    says = _Says(spaces.Dict({"a": spaces.MultiBinary(2)}), {"a": np.array([0.0, 1.0])})
    env = GymnasiumVectorEnv(lambda: flattened(says) if flatten else says, 1)
    env.reset(0)
    observation = env.step(np.zeros(1, np.int64)).observation
    np.testing.assert_array_equal(observation.view(np.float32), [[0, 1]])


def test_flags_alone_are_a_vector() -> None:
    """Without a Dict around them; a number other than 0 and 1 ends the actor."""
    env = GymnasiumVectorEnv(lambda: _Says(spaces.MultiBinary(2), np.array([0, 1])), 1)
    env.reset(0)
    assert (env.spec.observation_shape, env.spec.observation_dtype) == ((2,), "float32")
    np.testing.assert_array_equal(env.step(np.zeros(1, np.int64)).observation, [[0, 1]])
    wrong = GymnasiumVectorEnv(lambda: _Says(spaces.MultiBinary(2), np.array([0, 2])), 1)
    with pytest.raises(FatalError, match=naming("environment 0 1 returned an observation 2.0 allowed 0 and 1")):
        _play(wrong)


def test_flattened_bytes_are_refused_out_of_range() -> None:
    """They would wrap around."""
    env = GymnasiumVectorEnv(lambda: flattened(_Says(_BYTES, np.full((2, 2), 300))), 1)
    with pytest.raises(FatalError, match=naming("environment 0 1 observation int64 300 uint8")):
        _play(env)


@pytest.mark.parametrize("space, value, message", _WRONG[:5])
def test_batch_of_another_kind_ends_the_actor(space: gymnasium.Space[Any], value: object, message: str) -> None:
    """What a vector environment returns is looked at as closely."""

    class _Batch(gymnasium.vector.VectorEnv[Any, Any, Any]):
        num_envs = 2
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it
        single_observation_space, single_action_space = space, spaces.Discrete(2)

        def reset(self, *, seed: object = None, options: object = None) -> tuple[Any, dict[str, Any]]:
            return np.array([value, value]), {}

    with pytest.raises(FatalError, match=naming(message)):
        BatchedEnv(_Batch(), "a_test:make").reset(0)


@pytest.mark.parametrize(
    "value, dtype",
    [
        (np.array([0, 255], np.int64), "uint8"),
        (np.array([True, False]), "uint8"),
        (np.array([7, 2**24], np.int64), "float32"),
        (np.array([0.1], np.float64), "float32"),
        (np.array([0.5], np.float16), "float32"),
        (np.array([], np.int64), "float32"),
        ([1, 2], "float32"),
    ],
)
def test_number_that_fits_is_stored(value: object, dtype: str) -> None:
    """Whole numbers in range, flags and floats of other widths are what they were."""
    np.testing.assert_allclose(stored(value, dtype), np.asarray(value, np.float64), rtol=1e-6)


def test_float_too_large_becomes_infinite() -> None:
    """Which the check of finite numbers then names; no warning on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(stored(np.array([1e39]), "float32")).all()


def test_array_of_the_right_dtype_is_not_copied() -> None:
    """The usual case costs a comparison."""
    row = np.zeros(3, np.float32)
    assert stored(row, "float32") is row
    with pytest.raises(InvalidArgument, match=naming("float64")):
        stored(np.array([0.5]), "uint8", "speed")
