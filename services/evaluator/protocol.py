"""The evaluation protocol: which episodes are played, and that each of them counts exactly once.

Every episode has its own seed, fixed before the first step, and every one is played to its end. Taking the
first N episodes that happen to end instead would favour short ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.envs.interface import EpisodeSummary, VectorEnv
from tidemill.rl.frame_stacker import FrameStack

Array = NDArray[Any]
Act = Callable[[Array], Array]
"""From observations [N, ...], or [N, frame_stack, ...] with a stack, to actions [N, ...]."""


@dataclass(frozen=True)
class Evaluation:
    """What N episodes brought, in the order of their seeds."""

    returns: NDArray[np.float64]
    """Raw returns, [N]."""
    lengths: NDArray[np.int64]
    """Agent decisions, [N]."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns, not corrected for the sample."""
        return float(self.returns.std())

    @property
    def median(self) -> float:
        """Median return."""
        return float(np.median(self.returns))


class Slot:
    """One environment that plays one episode after another, each from its seed."""

    def __init__(self, env: VectorEnv) -> None:
        """Take an environment batch of one, which this object then owns."""
        assert env.num_envs == 1, f"a slot has one environment, got {env.num_envs}"
        self._env = env
        spec = env.spec
        self._stack = FrameStack(1, spec.frame_stack, spec.observation_shape, spec.observation_dtype)

    def start(self, seed: int) -> Array:
        """Begin the episode of a seed; return what the policy sees, [1, ...]."""
        return self._stack.push(self._env.reset(seed), np.ones(1, np.bool_))

    def step(self, action: Array) -> tuple[Array, EpisodeSummary | None]:
        """Act once, [1, ...]; return what the policy sees next, and the episode's summary if it has ended."""
        tick = self._env.step(action)
        return self._stack.push(tick.observation, tick.is_first), tick.episodes[0] if tick.episodes else None

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


class Protocol:
    """Plays episodes in slots that are made once and used again by every evaluation."""

    def __init__(self, make_env: Callable[[], VectorEnv], num_slots: int) -> None:
        """Prepare.

        Args:
            make_env: Makes a batch of one evaluation environment.
            num_slots: Episodes played side by side, which share each call of the policy.
        """
        self._make_env, self._num_slots = make_env, num_slots
        self._slots: list[Slot] = []

    def play(self, act: Act, seeds: Sequence[int], is_stopped: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Play one episode of each seed.

        Args:
            act: The policy.
            seeds: Seeds of the episodes, at least one.
            is_stopped: Asked at every step; True abandons the evaluation.

        Returns:
            The evaluation, or None if it was abandoned.
        """
        self._fill(min(self._num_slots, len(seeds)))
        round_ = _Round(self._slots, seeds)
        while round_.is_playing:
            if is_stopped():
                return None
            round_.step(act)
        return Evaluation(round_.returns, round_.lengths)

    def close(self) -> None:
        """Free the environments."""
        for slot in self._slots:
            slot.close()
        self._slots.clear()

    def _fill(self, count: int) -> None:
        while len(self._slots) < count:
            self._slots.append(Slot(self._make_env()))


class _Round:
    """The episodes of one evaluation: a slot that ends one takes the next seed that is left."""

    def __init__(self, slots: Sequence[Slot], seeds: Sequence[int]) -> None:
        self.returns = np.full(len(seeds), np.nan)
        self.lengths = np.zeros(len(seeds), np.int64)
        self._left = deque(enumerate(seeds))
        self._playing: list[tuple[Slot, int, Array]] = []
        for slot in slots:
            self._begin(slot)

    @property
    def is_playing(self) -> bool:
        return bool(self._playing)

    def step(self, act: Act) -> None:
        """Act once in every slot that plays."""
        playing = self._playing
        actions = act(np.concatenate([observation for _, _, observation in playing]))
        self._playing = []
        for i, (slot, episode, _) in enumerate(playing):
            observation, summary = slot.step(actions[i : i + 1])
            if summary is None:
                self._playing.append((slot, episode, observation))
            else:
                self.returns[episode], self.lengths[episode] = summary.episode_return, summary.length
                self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        if self._left:
            episode, seed = self._left.popleft()
            self._playing.append((slot, episode, slot.start(seed)))
