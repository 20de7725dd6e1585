"""Epsilon-greedy exploration: a ladder over the environments of all actors, a schedule over time, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Floats
from tidemill.errors import InvalidArgument
from tidemill.rl.checks import require, require_at_least, require_fractions


@dataclass(frozen=True)
class ActorSlot:
    """Place of an actor's environments among those of the whole cluster.

    Attributes:
        actor_index: Number of this actor, from 0. One past `actor_count` starts again at the front.
        num_envs: Environments of each actor.
        actor_count: Actors the cluster was planned for.
    """

    actor_index: int = 0
    num_envs: int = 1
    actor_count: int = 1

    def __post_init__(self) -> None:
        if self.actor_index < 0 or self.num_envs < 1 or self.actor_count < 1:
            raise InvalidArgument(f"an actor's slot needs actor_index >= 0, num_envs and actor_count >= 1, got {self}")

    def first_of(self, fraction: float, num_envs: int) -> int:
        """Return how many of `num_envs` environments that it acts in, the first ones, belong to a fraction of all.

        All actors' environments are counted in order, and each that completes a unit of the fraction belongs to it: of
        one each and a quarter the fourth, the eighth and so on. However many actors there are, at most that fraction of
        their environments does, and the only one of an actor that is alone does not.
        """
        before = self.actor_index * num_envs
        return int((before + num_envs) * fraction) - int(before * fraction)


def epsilon_ladder(slot: ActorSlot, base: float, alpha: float) -> NDArray[np.float64]:
    """Return each environment's constant epsilon, [num_envs] (Horgan et al. 2018, section 4.1).

    Environment i of all N = actor_count * num_envs explores with base ** (1 + alpha * i / (N - 1)),
    so the first explores most; a single environment gets `base`.
    """
    total = slot.actor_count * slot.num_envs
    first = (slot.actor_index % slot.actor_count) * slot.num_envs
    position = np.arange(first, first + slot.num_envs, dtype=np.float64)
    epsilon: NDArray[np.float64] = base ** (1.0 + alpha * position / max(total - 1, 1))
    return epsilon


def linear(step: int, start: float, end: float, duration: int) -> float:
    """Return the value of a line from `start` at step 0 to `end` at step `duration`, constant after it."""
    if step >= duration:
        return end
    return start + (end - start) * max(step, 0) / duration


@dataclass(frozen=True)
class EpsilonSettings:
    """Settings of an agent that explores by epsilon-greedy actions."""

    exploration: Literal["ladder", "schedule", "none"] = "ladder"
    """Epsilon-greedy exploration. `ladder`: a constant epsilon per environment, from high to low. `schedule`: one
    epsilon for all, which falls with time. `none`: no random actions, for noisy networks."""
    ladder_base: float = 0.4
    """Highest epsilon of a ladder, above 0 and at most 1."""
    ladder_alpha: float = 7.0
    """Steepness of a ladder: its lowest epsilon is ladder_base**(1 + ladder_alpha)."""
    epsilon_start: float = 1.0
    """Epsilon of a schedule at environment step 0, 0 to 1."""
    epsilon_final: float = 0.01
    """Epsilon of a schedule at its end and afterwards, 0 to 1."""
    epsilon_decay_steps: int = 250_000
    """Length of a schedule, in environment steps over all actors."""
    evaluation_epsilon: float = 0.001
    """Probability of a random action in evaluation, 0 to 1, with `evaluator.policy` `epsilon`."""


def check_epsilons(settings: EpsilonSettings) -> None:
    """Raise ConfigError if a setting is out of range."""
    kinds = ("ladder", "schedule", "none")
    require(settings.exploration in kinds, "exploration", settings.exploration, f"one of {', '.join(kinds)}")
    require(0 < settings.ladder_base <= 1, "ladder_base", settings.ladder_base, "above 0 and at most 1")
    require_at_least(0, settings, "ladder_alpha")
    require_at_least(1, settings, "epsilon_decay_steps")
    require_fractions(settings, "epsilon_start", "epsilon_final", "evaluation_epsilon")


class EpsilonGreedy:
    """Chooses among actions by their values, or at random with the probability that is each environment's due."""

    def __init__(self, settings: EpsilonSettings, slot: ActorSlot, seed: int) -> None:
        """Take the settings, the environments acted in, and the seed of the chances."""
        self._settings, self._slot = settings, slot
        self._ladder = epsilon_ladder(slot, settings.ladder_base, settings.ladder_alpha)
        self._rng = np.random.default_rng(seed)

    def epsilon(self, env_steps: int, num_envs: int) -> NDArray[np.float64]:
        """Return each environment's epsilon at a step of the whole cluster, [num_envs]."""
        s = self._settings
        if s.exploration == "none":
            return np.zeros(num_envs)
        if s.exploration == "ladder":
            if len(self._ladder) != num_envs:
                assert self._slot.actor_count == 1, f"placed for {len(self._ladder)} environments, got {num_envs}"
                self._ladder = epsilon_ladder(replace(self._slot, num_envs=num_envs), s.ladder_base, s.ladder_alpha)
            return self._ladder
        return np.full(num_envs, linear(env_steps, s.epsilon_start, s.epsilon_final, s.epsilon_decay_steps))

    def explore(self, q: Floats, env_steps: int, legal: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return actions to learn from, [N].

        Args:
            q: Values of all actions, [N, A].
            env_steps: Agent decisions of the whole cluster so far.
            legal: Which of them may be chosen, [N, A], at least one in each row; None: all.
        """
        explores = self._rng.random(len(q)) < self.epsilon(env_steps, len(q))
        size = len(q)
        anything = self._rng.integers(q.shape[1], size=size) if legal is None else random_legal(self._rng, legal)
        return np.where(explores, anything, greedy(q, legal))


def greedy(q: Floats, legal: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Return the legal action of largest value in each row, [N], given the values of all actions, [N, A]."""
    best: NDArray[np.int64] = (q if legal is None else np.where(legal, q, -np.inf)).argmax(axis=1)
    return best


def random_legal(rng: np.random.Generator, legal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Draw one of the legal actions of each row, [N], all alike, given which are legal, [N, A]."""
    number = rng.integers(legal.sum(axis=1))  # the how many-th of its row's legal actions
    drawn: NDArray[np.int64] = (legal.cumsum(axis=1) > number[:, None]).argmax(axis=1)
    return drawn
