"""An environment that cannot be trained on is refused in one line, before anything is started."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.naming import naming
from tidemill.envs.interface import VectorStep
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.services.launcher.run.random_play import play_random_steps
from tidemill.types import EnvSpec

_ZERO = np.zeros(2, np.float32)
_ALLOWED = "allowed since Gym 0.26 and in gymnasium: observation"


class Broken(gymnasium.Env[Any, Any]):
    """Goes wrong as its argument says."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, how: str) -> None:
        self._how, self._steps = how, 0
        if how == "bounds":
            largest = np.finfo(np.float64).max
            self.action_space = spaces.Box(-largest, largest, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - wrong
        """Start again, or fail to."""
        if self._how == "reset raises":
            raise RuntimeError("no level file")
        wrong: dict[str, Any] = {"reset of one": _ZERO, "reset of three": (_ZERO, {}, 0), "reset info": (_ZERO, None)}
        return wrong.get(self._how, (_ZERO, {}))

    def step(self, action: Any) -> Any:  # noqa: ANN401 - wrong on purpose
        """Act, or fail to."""
        self._steps += 1
        if self._how == "crash" and self._steps == 20:
            raise ZeroDivisionError("division by zero")
        if self._how == "lines":
            raise RuntimeError("no level\nfile")
        if self._how == "exit":
            raise SystemExit(3)
        late = self._steps >= 9
        wrong: dict[str, Any] = {
            "step of four": (_ZERO, 0.0, False, {}),
            "step of one": _ZERO,
            "array reward": (_ZERO, np.zeros(1), False, False, {}),
            "list reward": (_ZERO, [0.0], False, False, {}),
            "no reward": (_ZERO, None, False, False, {}),
            "text reward": (_ZERO, "much", False, False, {}),
            "NaN reward": (_ZERO, np.nan if late else 0.0, False, False, {}),
            "NaN": (_ZERO * np.nan if late else _ZERO, 0.0, False, False, {}),
            "shape": (_ZERO[:1], 0.0, False, False, {}),
            "info": (_ZERO, 0.0, True, False, None),
            "text flag": (_ZERO, 0.0, "no", False, {}),
            "no flag": (_ZERO, 0.0, False, None, {}),
            "array flag": (_ZERO, 0.0, np.zeros(1, np.bool_), False, {}),
            "text": ("left", 0.0, False, False, {}),
            "texts": (np.array(["a", "b"]), 0.0, False, False, {}),
            "objects": (np.array([0.5, None]), 0.0, False, False, {}),
        }
        return wrong.get(self._how, (_ZERO, 0.0, False, False, {}))


class OldReset(Broken):
    """Takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]  # noqa: ANN401 - as it was
        """Start again."""
        return _ZERO


class OwnBatch:
    """A `tidemill.VectorEnv` that does not keep to its spec."""

    num_envs = 1

    def __init__(self, num_envs: int, how: str) -> None:
        self.spec, self._how = EnvSpec((2,), "float32", num_actions=2), how
        assert num_envs == 1

    def reset(self, seed: int) -> Any:  # noqa: ANN401 - wrong
        """Start again."""
        return np.zeros((1, 2), np.float64 if self._how == "dtype" else np.float32)

    def step(self, action: Any) -> VectorStep:  # noqa: ANN401
        """Act."""
        if self._how == "raises":
            raise KeyError("joint")
        no, value = np.zeros(1, np.bool_), np.nan if self._how == "NaN" else 0.0
        observation = np.full((1, 3 if self._how == "shape" else 2), value, np.float32)
        ends: Any = np.array(["no"]) if self._how == "text flags" else no
        return VectorStep(observation, np.zeros(1, np.float32), ends, no, no, no)

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """End."""


@pytest.mark.parametrize(
    "how, line",
    [
        ("step of four", f"environment 0 at step 1 of its episode returned 4 values from step, {_ALLOWED}"),
        ("step of one", f"returned a ndarray from step, {_ALLOWED}, reward, terminated, truncated, info"),
        ("reset of one", f"step 0 of its episode returned a ndarray from reset, {_ALLOWED}, info"),
        ("reset of three", "returned 3 values from reset"),
        ("reset info", "returned None as the info of reset, allowed: a dict"),
        ("reset raises", r"step 0 of its episode raised RuntimeError: no level file (test_random_play.py, line"),
        ("array reward", "returned the reward of shape (1,), allowed: a number"),
        ("list reward", "returned the reward [0.0], allowed: a number"),
        ("no reward", "returned the reward None, allowed: a number"),
        ("text reward", "returned the reward 'much', allowed: a number"),
        ("NaN reward", "at step 9 of its episode returned a non-finite reward"),
        ("NaN", "at step 9 of its episode returned a non-finite observation"),
        ("exit", "at step 1 of its episode raised SystemExit: 3 (test_random_play.py, line"),
        ("text flag", "returned terminated 'no', allowed: True or False"),
        ("no flag", "returned truncated None, allowed: True or False"),
        ("array flag", "returned terminated of shape (1,), allowed: True or False"),
        ("shape", "returned an observation of shape (1,), allowed by its observation space: (2,)"),
        ("info", "returned None as the info of step, allowed: a dict"),
        ("text", "returned an observation of shape ()"),
        ("texts", "returned an observation of dtype <U1, which is stored as float32, allowed: numbers"),
        ("objects", "returned an observation of dtype object, which is stored as float32, allowed: numbers"),
        ("lines", "raised RuntimeError: no level file (test_random_play.py, line"),
        ("crash", "at step 20 of its episode raised ZeroDivisionError: division by zero (test_random_play.py, line"),
        ("bounds", "have no bounds to scale [-1, 1] to; give the action space finite bounds between -1e+09 and 1e+09"),
    ],
)
def test_broken_environment_is_refused_in_a_line(how: str, line: str) -> None:
    """Which says what is wrong with what it returned, and what is allowed."""
    _refused(EnvSettings(f"{__name__}:Broken", {"how": how}), line)


def test_reset_without_a_seed_is_of_the_old_interface() -> None:
    """Its message would be of an unexpected argument alone."""
    _refused(EnvSettings(f"{__name__}:OldReset", {"how": ""}), "its reset must take the arguments seed and options")


@pytest.mark.parametrize(
    "how, line",
    [
        ("dtype", "its reset returned observations of float64 [1, 2], its spec says float32 [1, 2]"),
        ("shape", "its step 1 returned observations of float32 [1, 3], its spec says float32 [1, 2]"),
        ("NaN", "environment 0 at step 1 of its episode returned a non-finite observation"),
        ("text flags", "its step 1 returned array(['no'], dtype='<U2') as terminated, allowed: an array of bool"),
        ("raises", "but it raised KeyError: 'joint' (test_random_play.py, line"),
    ],
)
def test_batch_of_ones_own_is_held_to_its_spec(how: str, line: str) -> None:
    """Its steps have no checks of Tidemill's."""
    settings = EnvSettings(kwargs={"how": how}, vector=f"{__name__}:OwnBatch")
    _refused(settings, line)


@pytest.mark.parametrize(
    "settings",
    [
        EnvSettings("CartPole-v1"),
        EnvSettings("Pendulum-v1"),
        EnvSettings("masked", {"mode": "NextStep"}, "tests.support.envs:masked_vector", action_mask="info.action_mask"),
        EnvSettings("tests.support.envs:parts"),
    ],
    ids=lambda settings: settings.id,
)
def test_environment_that_works_passes(settings: EnvSettings) -> None:
    """Of discrete and continuous actions, with masks, of several parts."""
    env = make_env(settings, 1, training=False)
    play_random_steps(env, settings, 3)


def _refused(settings: EnvSettings, line: str) -> None:
    with pytest.raises(ConfigError, match=naming(line)) as refused:
        play_random_steps(make_env(settings, 1, training=False), settings, 3)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ale_py:Breakout-v4"])
def test_game_of_raw_frames_is_refused(name: str) -> None:
    """None of the Atari settings would have an effect on it."""
    game = name.rpartition(":")[2].removesuffix("-v4").removesuffix("NoFrameskip")
    with pytest.raises(ConfigError, match=naming(f"'ALE/{game}-v5'")):
        make_env(EnvSettings(name), 1, training=True)


@pytest.mark.parametrize("setting", [{"frame_stack": 2}, {"frame_skip": 1}, {"clip_rewards": False}, {"noop_max": 0}])
def test_atari_setting_without_an_effect_is_refused(setting: dict[str, Any]) -> None:
    """Of another environment, which it would not reach."""
    with pytest.raises(ConfigError, match=naming(f"env.{next(iter(setting))}", "ALE/")):
        EnvSettings("CartPole-v1", **setting)


def test_arguments_may_be_lists_and_mappings() -> None:
    """As MuJoCo's environments take them."""
    settings = EnvSettings(f"{__name__}:takes", {"ranges": [0.5, 2.0], "parts": {"a": [1]}})
    make_env(settings, 1, training=True)


def takes(ranges: list[float], parts: dict[str, list[int]]) -> gymnasium.Env[Any, Any]:
    """Return an environment if the arguments are what the settings say."""
    assert (ranges, parts) == ([0.5, 2.0], {"a": [1]})
    return gymnasium.make("CartPole-v1")
