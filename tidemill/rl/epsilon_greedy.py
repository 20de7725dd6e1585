"""Random actions now and then: epsilon-greedy by a ladder, by a schedule or not at all."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.rl.agents.checks import require
from tidemill.rl.exploration import ActorPlace, epsilon_ladder, epsilon_schedule

Floats = NDArray[np.float32]


class EpsilonSettings(Protocol):
    """The settings of an agent that explores so; `DQNConfig` says what each means."""

    @property
    def exploration(self) -> str:
        """Which of the three: `ladder`, `schedule` or `none`."""

    @property
    def ladder_base(self) -> float:
        """Epsilon at the foot of the ladder."""

    @property
    def ladder_alpha(self) -> float:
        """How steep the ladder is."""

    @property
    def epsilon_start(self) -> float:
        """Where the schedule starts."""

    @property
    def epsilon_final(self) -> float:
        """Where it ends."""

    @property
    def epsilon_decay_steps(self) -> int:
        """How long it takes."""

    @property
    def evaluation_epsilon(self) -> float:
        """Share of random actions in evaluation."""


def check_epsilons(settings: EpsilonSettings) -> None:
    """Raise ConfigError if a setting is out of range."""
    kinds = ("ladder", "schedule", "none")
    require(settings.exploration in kinds, "exploration", settings.exploration, f"one of {', '.join(kinds)}")
    require(0 < settings.ladder_base <= 1, "ladder_base", settings.ladder_base, "above 0 and at most 1")
    require(settings.ladder_alpha >= 0, "ladder_alpha", settings.ladder_alpha, "0 or more")
    for field in ("epsilon_start", "epsilon_final", "evaluation_epsilon"):
        require(0 <= getattr(settings, field) <= 1, field, getattr(settings, field), "between 0 and 1")
    require(settings.epsilon_decay_steps >= 1, "epsilon_decay_steps", settings.epsilon_decay_steps, "at least 1")


class EpsilonGreedy:
    """Chooses among actions by their values, or at random with the probability that is each environment's due."""

    def __init__(self, settings: EpsilonSettings, place: ActorPlace, seed: int) -> None:
        """Take the settings, the environments acted in, and the seed of the chances."""
        self._settings = settings
        self._ladder = epsilon_ladder(place, settings.ladder_base, settings.ladder_alpha)
        self._rng = np.random.default_rng(seed)

    def epsilon(self, env_steps: int, num_envs: int) -> NDArray[np.float64]:
        """Return each environment's epsilon at a step of the whole cluster, [num_envs]."""
        s = self._settings
        if s.exploration == "none":
            return np.zeros(num_envs)
        if s.exploration == "ladder":
            assert len(self._ladder) == num_envs, f"placed for {len(self._ladder)} environments, got {num_envs}"
            return self._ladder
        return np.full(num_envs, epsilon_schedule(env_steps, s.epsilon_start, s.epsilon_final, s.epsilon_decay_steps))

    def explore(self, q: Floats, env_steps: int) -> NDArray[np.int64]:
        """Return actions to learn from, [N], given the values of all actions, [N, A]."""
        return self._choose(q, self.epsilon(env_steps, len(q)))

    def _choose(self, q: Floats, epsilon: NDArray[np.float64]) -> NDArray[np.int64]:
        explores = self._rng.random(len(q)) < epsilon
        anything = self._rng.integers(q.shape[1], size=len(q))
        return np.where(explores, anything, q.argmax(axis=1))
