"""Environments that go wrong again and again, each in one way, as simulators do."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from dataclasses import astuple, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tests.support.envs import CountingEnv, Result, Vector
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import EpisodeSummary, VectorStep

KIND_OF = {
    "raise": "raised",
    "exit": "raised",
    "raise_reset": "raised",
    "nan": "invalid",
    "infinite_reward": "invalid",
    "shape": "invalid",
    "dtype": "invalid",
    "tuple": "invalid",
    "nan_reset": "invalid",
}
"""Ways to fail that the process survives, and what each is counted as."""

FATAL = {"crash": "died", "leave": "died", "hang": "hung", "hang_reset": "hung", "leak": "memory"}
"""Ways that take the process with them, or hold it up."""

_INFOS = {"info": None, "ragged_mask": {"action_mask": [[0], [1, 0]]}}
"""Ways to fail that only an environment with masks has, and the info that it returns."""

_LEAK_BYTES = 32 * 2**20


class _Faults:
    """Goes wrong in one call of every `every`, counted over the life of the object."""

    def __init__(self, how: str, every: int) -> None:
        self.how, self._every, self._calls = how, every, 0
        self._leaked: list[NDArray[np.uint8]] = []
        self.is_ruined = False
        """With `ruin`: whether it has failed, after which no reset helps."""

    def is_due(self, *, reset: bool) -> bool:
        """Count a call; return whether this one goes wrong."""
        if reset and self.is_ruined:
            return True
        if reset != self.how.endswith("_reset"):
            return False
        self._calls += 1
        every = max(self._every // 20, 2) if reset else self._every  # resets are rarer
        return self._calls % every == 0

    def strike(self) -> None:
        """Raise, hang or end, if that is how."""
        how = self.how.removesuffix("_reset")
        if how in ("raise", "ruin"):
            self.is_ruined = how == "ruin"
            raise RuntimeError("the simulator broke")
        if how == "exit":
            raise SystemExit(3)
        if how == "hang":
            time.sleep(600)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "leave":
            os._exit(7)
        if how == "leak":
            self._leaked.append(np.ones(_LEAK_BYTES, np.uint8))

    def spoilt(self, observation: Any) -> Any:  # noqa: ANN401 - wrong on purpose
        """Return the observation to give instead."""
        how = self.how.removesuffix("_reset")
        if how == "nan":
            return observation * np.nan
        if how == "shape":
            return observation[:1]
        if how == "dtype":
            return np.array(["north"] * len(observation))
        return observation


class FaultyCountingEnv(CountingEnv):
    """Counts, and goes wrong once in every `every` steps, or resets."""

    def __init__(self, how: str = "raise", every: int = 7, length: int = 5) -> None:
        super().__init__(length)
        self._faults = _Faults(how, every)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        observation, info = super().reset(seed=seed, options=options)
        if self._faults.is_due(reset=True):
            self._faults.strike()
            observation = self._faults.spoilt(observation)
        return observation, info

    def step(self, action: np.int64) -> Any:  # noqa: ANN401 - wrong on purpose
        """Act once."""
        result = super().step(action)
        return _struck(self._faults, result) if self._faults.is_due(reset=False) else result


class FaultyCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that goes wrong once in every `every` steps, or resets; in evaluation a quarter as often.

    With `training_only` it does not go wrong in evaluation.

    `each` and `fatal` stand for another way each time, by the first seed: of those that a process survives, or of all.
    """

    def __init__(
        self, how: str = "raise", every: int = 100, training: bool = True, training_only: bool = False
    ) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        often = every if training else 4 * every  # an evaluation whose episodes mostly fail does not count
        self._faults = _Faults("none" if training_only and not training else how, often)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None and self._faults.how in ("each", "fatal"):
            ways = [*KIND_OF, *(FATAL if self._faults.how == "fatal" else ())]
            self._faults.how = ways[seed % len(ways)]
        if self._faults.is_due(reset=True):
            self._faults.strike()
            observation = self._faults.spoilt(observation)
        return observation, info

    def step(self, action: Any) -> Any:  # noqa: ANN401 - wrong on purpose
        """Act once."""
        result = self.env.step(action)
        return _struck(self._faults, result) if self._faults.is_due(reset=False) else result


def _struck(faults: _Faults, result: Any) -> Any:  # noqa: ANN401 - wrong on purpose
    faults.strike()
    observation, reward, *rest = result
    if faults.how == "tuple":
        return (observation, reward)
    if faults.how in _INFOS:
        return (observation, reward, *rest[:-1], _INFOS[faults.how])
    return (faults.spoilt(observation), float("inf") if faults.how == "infinite_reward" else reward, *rest)


class UnmakeableEnv(CountingEnv):
    """Can be made as often as a file in `folder` is missing; each time leaves one."""

    def __init__(self, folder: str, most: int = 1) -> None:
        super().__init__()
        if len(os.listdir(folder)) >= most:
            raise RuntimeError("no licence left")
        open(f"{folder}/{time.monotonic_ns()}", "w").close()

    def step(self, action: np.int64) -> Result:
        """Fail."""
        raise RuntimeError("the simulator broke")


class UnendingEnv(CountingEnv):
    """Needs ten minutes for its constructor, or for each reset."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method
        if method == "constructor":
            time.sleep(600)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        if self._method == "reset":
            time.sleep(600)
        return super().reset(seed=seed, options=options)


class QueuingEnv(CountingEnv):
    """Resets for a second, one environment after the other, as on a single core; `path` is a file to lock."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        with open(self._path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(1.0)
        return super().reset(seed=seed, options=options)


class SlowEnv(CountingEnv):
    """Needs over a second in each call of a method, and leaves files in `folder` that say when."""

    def __init__(self, folder: str, method: str) -> None:
        super().__init__()
        self._folder, self._method = folder, method

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        self._wait("reset")
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        """Close."""
        self._wait("close")

    def _wait(self, method: str) -> None:
        if method != self._method:
            return
        for what, for_s in (("begun", 1.2), ("ended", 0.0)):
            with open(f"{self._folder}/{os.getpid()}.{what}", "w") as file:
                file.write(str(time.monotonic()))
            time.sleep(for_s)


def faulty(how: str = "raise", every: int = 7, length: int = 5) -> FaultyCountingEnv:
    """Return a counting environment that goes wrong, for `module:function` ids."""
    return FaultyCountingEnv(how, every, length)


def faulty_vector(num_envs: int, how: str = "raise", every: int = 7, length: int = 5) -> gymnasium.vector.SyncVectorEnv:
    """Return a batch of them, of which the last goes wrong and has episodes of another length."""
    makers = [CountingEnv] * (num_envs - 1) + [lambda: FaultyCountingEnv(how, every, length)]
    return gymnasium.vector.SyncVectorEnv(makers)


def slow_vector(num_envs: int) -> gymnasium.vector.SyncVectorEnv:
    """Return a batch that needs over a second to be made."""
    time.sleep(1.5)
    return gymnasium.vector.SyncVectorEnv([CountingEnv] * num_envs)


def faulty_processes(num_envs: int, how: str = "leave", every: int = 7, which: int = -1) -> gymnasium.vector.VectorEnv:
    """Return a batch whose environments have a process each, of which one goes wrong."""
    makers: list[Any] = [CountingEnv] * num_envs
    makers[which] = lambda: FaultyCountingEnv(how, every)
    return gymnasium.vector.AsyncVectorEnv(makers)


class BrokenCloseEnv(gymnasium.vector.SyncVectorEnv):
    """A batch that raises in its third step, and in `close`, as its simulator is gone."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([lambda: FaultyCountingEnv("raise", 3)] * num_envs)

    def close(self, **_: Any) -> None:  # noqa: ANN401
        """Fail."""
        raise BrokenPipeError("the simulator is gone")


class NumPyScalars(GymnasiumVectorEnv):
    """A batch that counts, whose spec and summaries of episodes hold NumPy's scalars."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(CountingEnv, num_envs)
        self.spec = replace(self.spec, num_actions=np.int64(2))  # type: ignore[arg-type]

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act once in each."""
        step = super().step(action)
        told: list[Any] = [[np.array(value)[()] for value in astuple(each)] for each in step.episodes]
        return replace(step, episodes=tuple(EpisodeSummary(*each) for each in told))


class OverwritingEnv(GymnasiumVectorEnv):
    """A batch that counts, and writes zeros over the actions that it was given."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(CountingEnv, num_envs)

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Act once in each."""
        step = super().step(action)
        action[:] = 0
        return step


class MaskedFaultyEnv(FaultyCountingEnv):
    """Goes wrong, and has masks by which only action 1 is legal."""

    def __init__(self, how: str = "raise", every: int = 7) -> None:
        super().__init__(how, every)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start the next episode."""
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"action_mask": np.array([0, 1, 0], np.int8)}

    def step(self, action: np.int64) -> Any:  # noqa: ANN401 - wrong on purpose
        """Act once."""
        *rest, info = super().step(action)
        return (*rest, info if info is None else {"action_mask": np.array([0, 1, 0], np.int8)} | info)


class SometimesEnv(FaultyCountingEnv):
    """Goes wrong in every third step, unless it is the second or third that the process makes."""

    made = 0

    def __init__(self) -> None:
        SometimesEnv.made += 1
        super().__init__(every=10**9 if self.made in (2, 3) else 3)
