"""Exploration of continuous actions: noise added to them, and random actions held for a while.

NumPy only, in the scale of actions, [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Floats
from tidemill.rl.checks import require
from tidemill.rl.exploration import ActorSlot


class HeldActions:
    """Random actions that some of N environments hold."""

    def __init__(self, probability: float, steps: int, rng: np.random.Generator) -> None:
        """Hold nothing yet.

        Args:
            probability: That an environment which holds none begins to, at each step.
            steps: Longest hold; the shortest is a third of it.
            rng: Draws beginnings, durations and actions.
        """
        self._probability, self._steps, self._rng = probability, steps, rng
        self._left = np.zeros(0, dtype=np.int64)
        self._held: Floats = np.zeros((0, 0), dtype=np.float32)

    def replace(self, action: Floats, may_hold: NDArray[np.bool_], is_first: NDArray[np.bool_] | None = None) -> Floats:
        """Return the actions of one step, with those held in place of the policy's.

        Args:
            action: The policy's, [N, A].
            may_hold: Environments that explore in this way, [N].
            is_first: Where an episode begins, [N], and a hold of the one before ends. None: nowhere.
        """
        if len(self._left) != len(action):
            self._left, self._held = np.zeros(len(action), dtype=np.int64), np.zeros_like(action)
        if is_first is not None:
            self._left[is_first] = 0
        begins = may_hold & (self._left == 0) & (self._rng.random(len(action)) < self._probability)
        count = int(np.count_nonzero(begins))
        shortest = max(self._steps // 3, 1)
        self._left[begins] = self._rng.integers(shortest, self._steps + 1, count)
        self._held[begins] = self._rng.uniform(-1.0, 1.0, (count, action.shape[1]))
        holds = self._left > 0
        self._left[holds] -= 1
        return np.where(holds[:, None], self._held, action)


@dataclass(frozen=True)
class NoiseConfig:
    """Noise added to actions while exploring."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """Exploration noise. `gaussian`: white noise. `ou`: an Ornstein-Uhlenbeck process, whose noise is correlated over
    steps (Lillicrap et al. 2016)."""
    std: float = 0.1
    """Standard deviation of the noise added at each step, where actions range from -1 to 1. For `ou` it is sigma."""
    theta: float = 0.15
    """Fraction of `ou` noise that decays at each step, above 0 and at most 1. Unused with `gaussian`."""
    greedy_fraction: float = 0.0
    """Fraction of all actors' environments that act without noise after the random start, 0 to 1. It is rounded down:
    below 1, an environment that is alone has noise."""
    hold_probability: float = 0.0
    """Probability per step that an environment with noise starts to hold one uniformly random action. 0: never."""
    hold_steps: int = 60
    """Longest hold, in steps, at least 1. The shortest is a third of it (Dabney et al. 2021). A hold ends with its
    episode."""

    def __post_init__(self) -> None:
        require(self.kind in ("gaussian", "ou"), "noise.kind", self.kind, "'gaussian' or 'ou'")
        require(0 <= self.std < float("inf"), "noise.std", self.std, "0 or more and finite")
        require(0 < self.theta <= 1, "noise.theta", self.theta, "above 0 and at most 1")
        require(0 <= self.greedy_fraction <= 1, "noise.greedy_fraction", self.greedy_fraction, "between 0 and 1")
        require(0 <= self.hold_probability <= 1, "noise.hold_probability", self.hold_probability, "between 0 and 1")
        require(self.hold_steps >= 1, "noise.hold_steps", self.hold_steps, "at least 1")


class OrnsteinUhlenbeck:
    """x <- (1 - theta) x + std * normal, from 0 at the start of each episode; one process an action's component.

    It is the process of Lillicrap et al. (2016), section 7, in steps of one decision. Its variance grows towards
    std^2 / (1 - (1 - theta)^2).
    """

    def __init__(self, theta: float, std: float, rng: np.random.Generator) -> None:
        self._theta, self._std, self._rng = theta, std, rng
        self._value: Floats = np.zeros((0, 0), np.float32)

    def next(self, shape: tuple[int, int], is_first: NDArray[np.bool_] | None = None) -> Floats:
        """Return the noise of one step of N environments, [N, A]; an episode that begins, [N], starts from 0."""
        if self._value.shape != shape:
            self._value = np.zeros(shape, np.float32)
        if is_first is not None:
            self._value[is_first] = 0.0
        fresh = self._rng.standard_normal(shape, dtype=np.float32)
        self._value = (1.0 - self._theta) * self._value + self._std * fresh
        return self._value


class ActionNoise:
    """Adds noise to the actions of N environments, step by step, as its settings say."""

    def __init__(self, config: NoiseConfig, seed: int, slot: ActorSlot | None = None) -> None:
        self._config, self._slot = config, slot or ActorSlot()
        self._rng = np.random.default_rng(seed)
        self._process = OrnsteinUhlenbeck(config.theta, config.std, self._rng)
        self._held = HeldActions(config.hold_probability, config.hold_steps, np.random.default_rng((seed, 1)))

    def add_noise(self, action: Floats, is_first: NDArray[np.bool_] | None = None) -> Floats:
        """Return the actions to take, [N, A] in [-1, 1].

        Args:
            action: The policy's, [N, A].
            is_first: Where an episode begins, [N]: an OU process starts from 0, and a hold ends. None: nowhere.
        """
        shape = (len(action), action.shape[1])
        noise = self._process.next(shape, is_first) if self._config.kind == "ou" else self._white(shape)
        noisy = np.arange(len(action)) >= self._slot.first_of(self._config.greedy_fraction, len(action))
        noisy_action = np.where(noisy[:, None], action + noise, action)
        if self._config.hold_probability:
            noisy_action = self._held.replace(noisy_action, noisy, is_first)
        return np.clip(noisy_action, -1.0, 1.0).astype(np.float32, copy=False)

    def uniform(self, shape: tuple[int, int]) -> Floats:
        """Return uniformly random actions [N, A], for the first steps."""
        return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    def _white(self, shape: tuple[int, int]) -> Floats:
        return self._config.std * self._rng.standard_normal(shape, dtype=np.float32)
