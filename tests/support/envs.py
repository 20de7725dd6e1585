"""Environments whose observations say exactly what happened, so that tests can verify streams.

Reached by id, as a user's own would be: `tests.support.envs:counting`.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Result = tuple[Any, float, bool, bool, dict[str, Any]]


class CountingEnv(gymnasium.Env[Vector, np.int64]):
    """Observes (episode, step), both from 0; the reward of step t is t. Episodes last `length` steps."""

    def __init__(self, length: int = 5, end: str = "terminated") -> None:
        """Set how an episode ends: `terminated`, `truncated`, `both`, or `told`: terminated, but info tells a limit."""
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._length, self._end = length, end
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: np.int64) -> Result:
        """Act once."""
        self._step += 1
        ended = self._step == self._length
        terminated, truncated = self._end in ("terminated", "both", "told"), self._end in ("truncated", "both")
        info = {"TimeLimit.truncated": True} if ended and self._end == "told" else {}
        return self._observation(), float(self._step), ended and terminated, ended and truncated, info

    def _observation(self) -> Vector:
        return np.array([self._episode, self._step], np.float32)


class FailingEnv(CountingEnv):
    """Goes wrong in one step: raises, or returns a NaN observation or reward, or a wrong shape."""

    def __init__(self, step: int = 3, how: str = "raise") -> None:
        """Set the step, from 1 (0 is the reset), and how: `raise`, `observation`, `reward`, `huge` or `shape`.

        A `huge` reward is one that float32 cannot hold.
        """
        super().__init__(length=100)
        self._bad_step, self._how = step, how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        observation, info = super().reset(seed=seed, options=options)
        return self._spoil(observation), info

    def step(self, action: np.int64) -> Result:
        """Act once."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self._step == self._bad_step:
            reward = {"reward": np.nan, "huge": 1e39}.get(self._how, reward)
        return self._spoil(observation), reward, terminated, truncated, info

    def _spoil(self, observation: Vector) -> Vector:
        if self._step != self._bad_step:
            return observation
        if self._how == "raise":
            raise RuntimeError("the simulator broke")
        if self._how == "shape":
            return observation[:1]
        return observation * np.nan if self._how == "observation" else observation


class HangingEnv(CountingEnv):
    """Does not return from one call of `step`, `reset`, `close` or `__init__`, counted from 1 over all episodes."""

    def __init__(self, method: str = "step", call: int = 3) -> None:
        """Set which call it is, and of what."""
        super().__init__(length=20)
        self._method, self._call, self._calls = method, call, 0
        self.released = threading.Event()
        """Lets the call return; otherwise it does after ten minutes."""
        self._count("__init__")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        self._count("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Result:
        """Act once."""
        self._count("step")
        return super().step(action)

    def _count(self, method: str) -> None:
        self._calls += method == self._method
        if method == self._method and self._calls == self._call:
            self.released.wait(600)

    def close(self) -> None:
        """Free nothing."""
        self._count("close")


class EchoEnv(gymnasium.Env[Any, Any]):
    """Observes the last action as it arrived, flattened, in float64; refuses one that its space has not."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        """Take any action space of arrays or integers."""
        self.action_space = action_space
        self._size = int(np.prod(action_space.shape or (1,)))
        self.observation_space = spaces.Box(-np.inf, np.inf, (self._size,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        return np.zeros(self._size), {}

    def step(self, action: object) -> Result:
        """Act once."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return np.asarray(action, np.float64).reshape(-1), 0.0, False, False, {}


class MaskedEnv(gymnasium.Env[Any, np.int64]):
    """Of actions 0 to 3 the even ones are legal at even steps, the odd ones at odd steps; 2 and 3 give reward 1.

    It observes whether the step is even, one-hot, fails at an illegal action, and ends after 6 steps, where nothing is
    legal unless that is a truncation. A policy that prefers the larger legal action has return 6.
    """

    LENGTH = 6

    def __init__(self, mask: str = "info", bad_step: int = -1, end: str = "terminated") -> None:
        """Say where the mask is, `info` or `observation`, or at `bad_step` what is wrong with that in the info.

        `short`, `float`, `none` (nothing is legal), `missing` or `two` (an entry is 2). `end` is how an episode ends,
        `terminated`, `truncated` or `both`.
        """
        self.action_space = spaces.Discrete(4)
        self._place, self._bad_step, self._end, self._step = mask, bad_step, end, 0
        vector = spaces.Box(0, 1, (2,), np.float32)
        keys = {"seen": vector, "action_mask": spaces.MultiBinary(4)}
        self.observation_space = spaces.Dict(keys) if mask == "observation" else vector

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), self._info()

    def step(self, action: np.int64) -> Result:
        """Act once."""
        if action % 2 != self._step % 2:
            raise ValueError(f"illegal action {action}")
        self._step += 1
        ended = self._step == self.LENGTH
        terminated, truncated = (ended and self._end in (flag, "both") for flag in ("terminated", "truncated"))
        return self._observation(), float(action >= 2), terminated, truncated, self._info()

    def _mask(self) -> NDArray[np.int8]:
        is_over = self._step == self.LENGTH and self._end != "truncated"
        legal = [not is_over and action % 2 == self._step % 2 for action in range(4)]
        return np.array(legal, np.int8)

    def _observation(self) -> Any:  # noqa: ANN401 - a vector, or a dict
        vector = np.eye(2, dtype=np.float32)[self._step % 2]
        return {"seen": vector, "action_mask": self._mask()} if self._place == "observation" else vector

    def _info(self) -> dict[str, Any]:
        mask: NDArray[Any] = self._mask()
        how = self._place if self._step == self._bad_step else "info"
        if self._place == "observation" or how == "missing":
            return {}
        if how == "float":
            mask = mask.astype(np.float32)
        return {"action_mask": {"short": mask[:3], "none": mask * 0, "two": mask * 2}.get(how, mask)}


class ChoicesEnv(gymnasium.Env[Vector, NDArray[np.int64]]):
    """Choices of 2, 3 and 2 options; each that equals what the observation says gives reward 1. Episodes of 4 steps."""

    LENGTH = 4
    WANTED = ((0, 2, 1), (1, 0, 1))

    def __init__(self) -> None:
        """Prepare."""
        self.action_space = spaces.MultiDiscrete([2, 3, 2])
        self.observation_space = spaces.Box(0, 1, (2,), np.float32)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._step = 0
        return np.eye(2, dtype=np.float32)[0], {}

    def step(self, action: NDArray[np.int64]) -> Result:
        """Act once."""
        reward = float((action == np.array(self.WANTED[self._step % 2])).sum())
        self._step += 1
        return np.eye(2, dtype=np.float32)[self._step % 2], reward, self._step == self.LENGTH, False, {}


class RecallEnv(gymnasium.Env[Vector, np.int64]):
    """Shows a cue, 1 or -1, in the first step, and wants it named in the last: reward 1, or -1 for the other one.

    An observation is the cue or 0, and whether the step is the last.
    """

    LENGTH = 5

    def __init__(self) -> None:
        """Prepare."""
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self._step, self._cue = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._step, self._cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: np.int64) -> Result:
        """Act once."""
        self._step += 1
        ends = self._step == self.LENGTH
        reward = (1.0 if action == self._cue else -1.0) if ends else 0.0
        return np.array([0, self._step == self.LENGTH - 1], np.float32), reward, ends, False, {}


class ObservingEnv(gymnasium.Env[Any, np.int64]):
    """Observes the given value of the given space, always."""

    def __init__(self, space: spaces.Space[Any], value: object) -> None:
        """Take any observation space, and a value of it."""
        self.observation_space, self._value = space, value
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        return self._value, {}

    def step(self, action: np.int64) -> Result:
        """Act once."""
        return self._value, 0.0, False, False, {}


def counting(length: int = 5, end: str = "terminated") -> CountingEnv:
    """Return a `CountingEnv`."""
    return CountingEnv(length, end)


def failing(step: int = 3, how: str = "raise") -> FailingEnv:
    """Return a `FailingEnv`."""
    return FailingEnv(step, how)


def hanging(method: str = "step", call: int = 3) -> HangingEnv:
    """Return an environment that hangs, for `module:function` ids."""
    return HangingEnv(method, call)


def hanging_vector(num_envs: int, call: int = 3) -> gymnasium.vector.AsyncVectorEnv:
    """Return a batch of environments in separate processes, all of which hang."""
    return gymnasium.vector.AsyncVectorEnv([partial(HangingEnv, "step", call)] * num_envs)


def masked(mask: str = "info", bad_step: int = -1, end: str = "terminated") -> MaskedEnv:
    """Return a `MaskedEnv`."""
    return MaskedEnv(mask, bad_step, end)


def masked_vector(
    num_envs: int,
    mode: str = "NextStep",
    max_episode_steps: int = 100,
    mask: str = "info",
    bad_step: int = -1,
    end: str = "terminated",
) -> gymnasium.vector.SyncVectorEnv:
    """Return a batch of `MaskedEnv` by gymnasium."""

    def make() -> gymnasium.Env[Any, np.int64]:
        return gymnasium.wrappers.TimeLimit(MaskedEnv(mask, bad_step, end), max_episode_steps)

    return gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode(mode))


class PartsEnv(gymnasium.Env[Any, np.int64]):
    """Observes a camera, a speed and a gear, in which the step can be read; episodes of `length` steps.

    The action is 0 or 1; equal to the gear it gives reward 1.
    """

    def __init__(self, length: int = 3, nan_step: int = -1) -> None:
        """Set the length, and the step at which the speed is not a number."""
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (2, 3), np.uint8),
                "body": spaces.Tuple((spaces.Box(-10, 10, (2,), np.float64), spaces.Discrete(2))),
            }
        )
        self.action_space = spaces.Discrete(2)
        self._length, self._nan_step, self._step = length, nan_step, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> Result:
        """Act once."""
        reward = float(action == self._gear)
        self._step += 1
        return self._observation(), reward, self._step == self._length, False, {}

    @property
    def _gear(self) -> int:
        return int(self._step % 3 == 1)

    def _observation(self) -> dict[str, Any]:
        camera = np.full((2, 3), self._step, np.uint8)
        camera[0, 0] = 255 * self._gear
        speed = np.array([self._step / 2, np.nan if self._step == self._nan_step else -1.5])
        return {"camera": camera, "body": (speed, np.int64(self._gear))}


def parts(length: int = 3, nan_step: int = -1) -> PartsEnv:
    """Return a `PartsEnv`."""
    return PartsEnv(length, nan_step)


def parts_vector(num_envs: int, mode: str = "NextStep") -> gymnasium.vector.SyncVectorEnv:
    """Return a batch of `PartsEnv` by gymnasium."""
    return gymnasium.vector.SyncVectorEnv([PartsEnv] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode(mode))


def dictionary() -> ObservingEnv:
    """Return an environment that observes {"place": 1 of 3, "speed": (0.5, -0.5)}."""
    space = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    return ObservingEnv(space, {"place": np.int64(1), "speed": np.array([0.5, -0.5], np.float32)})


def pair() -> ObservingEnv:
    """Return an environment that observes the tuple (1 of 3, {"speed": .5})."""
    inner = spaces.Dict({"speed": spaces.Box(-1, 1, (1,), np.float32)})
    value = (np.int64(1), {"speed": np.array([0.5], np.float32)})
    return ObservingEnv(spaces.Tuple((spaces.Discrete(3), inner)), value)


def sequence() -> ObservingEnv:
    """Return an environment that observes a sequence of numbers, of any length."""
    return ObservingEnv(spaces.Sequence(spaces.Box(-1, 1, (1,), np.float32)), ())


def place() -> ObservingEnv:
    """Return an environment that observes place 2 of 4."""
    return ObservingEnv(spaces.Discrete(4), np.int64(2))


def image() -> ObservingEnv:
    """Return an environment that observes a 2x3 image of bytes, 0 to 5."""
    return ObservingEnv(spaces.Box(0, 255, (2, 3), np.uint8), np.arange(6, dtype=np.uint8).reshape(2, 3))


def pixels(shape: list[int]) -> ObservingEnv:
    """Return an environment that observes black pixels, an array of this shape."""
    return ObservingEnv(spaces.Box(0, 255, tuple(shape), np.uint8), np.zeros(shape, np.uint8))


def scaled() -> EchoEnv:
    """Return an environment that echoes actions of [0, 10] x [-4, -2]."""
    return EchoEnv(spaces.Box(np.array([0, -4], np.float32), np.array([10, -2], np.float32)))


def scalar() -> EchoEnv:
    """Return an environment that echoes one number of [0, 10], whose space has no axis."""
    return EchoEnv(spaces.Box(0, 10, (), np.float32))


def unbounded() -> EchoEnv:
    """Return an environment whose actions have no bounds."""
    return EchoEnv(spaces.Box(-np.inf, np.inf, (1,), np.float32))


class DrawingEnv(CountingEnv):
    """Counts and can draw, in the mode that it is made with."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, mode: str | None = None) -> None:
        """Take the mode."""
        super().__init__()
        self.render_mode = mode

    def render(self) -> Any:  # noqa: ANN401 - gymnasium's
        """Return a picture."""
        return np.zeros((2, 2, 3), np.uint8)


def drawing(mode: str | None = "rgb_array") -> DrawingEnv:
    """Return an environment that draws, and has no parameter `render_mode`."""
    return DrawingEnv(mode)


def drawing_if_asked(**others: Any) -> DrawingEnv:  # noqa: ANN401
    """Return an environment that draws if it is given `render_mode`."""
    return DrawingEnv(others.get("render_mode"))


class _KillingEnv(DrawingEnv):
    def render(self) -> Any:  # noqa: ANN401 - gymnasium's
        """Kill the process, as a crash of a renderer in native code does."""
        os.kill(os.getpid(), signal.SIGKILL)


def killed_by_drawing(**others: Any) -> DrawingEnv:  # noqa: ANN401
    """Return an environment whose process is killed when it draws."""
    return _KillingEnv(others.get("render_mode"))


def offset() -> EchoEnv:
    """Return an environment that echoes actions 5, 6 and 7."""
    return EchoEnv(spaces.Discrete(3, start=5))


def joint() -> EchoEnv:
    """Return an environment that echoes pairs of an action of {0, 1} and one of {10, 11, 12}."""
    return EchoEnv(spaces.MultiDiscrete(np.array([2, 3]), start=np.array([0, 10])))


def binary() -> EchoEnv:
    """Return an environment that echoes three switches."""
    return EchoEnv(spaces.MultiBinary(3))


def switchboard() -> EchoEnv:
    """Return an environment that echoes six rows of ten switches."""
    return EchoEnv(spaces.MultiBinary((6, 10)))


def choices() -> ChoicesEnv:
    """Return a `ChoicesEnv`."""
    return ChoicesEnv()


def recall() -> RecallEnv:
    """Return a `RecallEnv`."""
    return RecallEnv()


def no_environment() -> int:
    """Return something that is not an environment."""
    return 7


if "tidemill-tests/Counting-v0" not in gymnasium.registry:
    gymnasium.register("tidemill-tests/Counting-v0", entry_point=f"{__name__}:CountingEnv", max_episode_steps=7)
