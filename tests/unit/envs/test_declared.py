"""Environments that only simulators have: their spaces as a setting."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import tidemill
from tests.support.naming import naming
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, InvalidArgument
from tidemill.simulator.wire import observed
from tidemill.types import EnvSpec


def _spec(**spaces: object) -> EnvSpec:
    return spec_of(EnvSettings("robot", spaces=spaces))


def test_declared_spaces_are_the_specification() -> None:
    """Nothing is made; the stack is that of the settings."""
    assert _spec(observation=["float32", 4], num_actions=2) == EnvSpec((4,), "float32", num_actions=2)
    assert _spec(observation=["uint8", 8, 8, 3], action_shape=[2]) == EnvSpec((8, 8, 3), "uint8", action_shape=(2,))
    choices = _spec(observation=["float32", 4], action_sizes=[2, 3], masks_actions=True)
    assert choices == EnvSpec((4,), "float32", action_shape=(2,), masks_actions=True, action_sizes=(2, 3))
    stacked = EnvSettings("robot", spaces={"observation": ["float32", 4], "num_actions": 2}, observation_stack=3)
    assert spec_of(stacked).frame_stack == 3


def test_declared_parts_are_those_of_the_same_dict_in_an_environment() -> None:
    """In the same order and of the same size."""
    declared = _spec(observation={"eye": ["uint8", 8, 8], "arm": ["float32", 3]}, num_actions=2)

    class Robot(gymnasium.Env[Any, Any]):
        observation_space: gymnasium.Space[Any] = gymnasium.spaces.Dict(
            eye=gymnasium.spaces.Box(0, 255, (8, 8), np.uint8),
            arm=gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        )
        action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    made = GymnasiumVectorEnv(Robot, 1)
    assert declared == made.spec


@pytest.mark.parametrize(
    "spaces, message",
    [
        ({"observations": ["float32", 4], "num_actions": 2}, "env.spaces observations observation"),
        ({"observation": ["float64", 4], "num_actions": 2}, "env.spaces.observation float64 float32 uint8"),
        ({"observation": ["float32", 4]}, "env.spaces no actions num_actions"),
        ({"observation": ["float32", 4], "num_actions": 2, "action_shape": [1]}, "num_actions action_shape one of"),
        ({"observation": ["float32", 0], "num_actions": 2}, "env.spaces.observation [0] 1"),
        ({"observation": {"a": "float32"}, "num_actions": 2}, "env.spaces.observation.a 'float32'"),
        (
            {"observation": {"Arm": ["float32", 3], "arm": ["float32", 3]}, "num_actions": 2},
            "env.spaces.observation 'Arm' 'arm' rename",
        ),
        ({"observation": ["float32", 4], "num_actions": "two"}, "env.spaces.num_actions 'two'"),
        ({"observation": ["float32", 4], "action_shape": [2], "masks_actions": True}, "env.spaces.masks_actions"),
    ],
)
def test_malformed_spaces_are_named(spaces: dict[str, object], message: str) -> None:
    """The field, the value and what is allowed."""
    with pytest.raises(ConfigError, match=naming(message)):
        _spec(**spaces)


def test_environment_that_only_simulators_have_cannot_be_made() -> None:
    """The message says what to set."""
    settings = EnvSettings("robot", spaces={"observation": ["float32", 4], "num_actions": 2})
    with pytest.raises(ConfigError, match=naming("env.spaces 'robot' launcher.actors 0 evaluator.source")):
        make_env(settings, 1, training=True)


def test_program_declares_parts_as_a_config_file_does() -> None:
    """Tuples and lists are alike, and a key is named as in the observations of a client."""
    spaces = {"observation": {"Camera": ("uint8", 64, 64, 3), "speed": ["float32", 2]}, "num_actions": 4}
    spec = tidemill.declared_spec(spaces)
    assert [part.name for part in spec.observation_parts] == ["speed", "camera"]
    assert spec.observation_shape == (64 * 64 * 3 + 2 * 4,)
    assert spec == _spec(**spaces)
    seen = observed({"Camera": np.zeros((64, 64, 3), np.uint8), "speed": np.zeros(2)}, spec)
    assert seen.shape == spec.observation_shape
    with pytest.raises(ConfigError, match=naming("spaces.observation.speed ('int8', 2) float32")) as refused:
        tidemill.declared_spec({"observation": {"speed": ("int8", 2)}, "num_actions": 4})
    assert "env.spaces" not in str(refused.value)


@pytest.mark.parametrize("shape", [{"camera": (64, 64, 3)}, [4], 4])
def test_shape_that_is_no_tuple_is_refused_with_what_to_write(shape: Any) -> None:  # noqa: ANN401 - anything
    """A dict of parts above all."""
    with pytest.raises(InvalidArgument, match=naming("observation_shape", "tidemill.declared_spec", "(4,)")):
        EnvSpec(shape, "float32", num_actions=2)
