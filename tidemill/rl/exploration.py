"""Schedules of exploration. Pure functions of counters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument


@dataclass(frozen=True)
class ActorPlace:
    """Which environments of the whole cluster an actor steps.

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
            raise InvalidArgument(f"an actor's place needs actor_index >= 0, num_envs and actor_count >= 1, got {self}")


def epsilon_ladder(place: ActorPlace, base: float, alpha: float) -> NDArray[np.float64]:
    """Return each environment's constant epsilon, [num_envs] (Horgan et al. 2018, section 4.1).

    Environment i of all N = actor_count * num_envs explores with base ** (1 + alpha * i / (N - 1)),
    so the first explores most; a single environment gets `base`.
    """
    total = place.actor_count * place.num_envs
    first = (place.actor_index % place.actor_count) * place.num_envs
    position = np.arange(first, first + place.num_envs, dtype=np.float64)
    epsilon: NDArray[np.float64] = base ** (1.0 + alpha * position / max(total - 1, 1))
    return epsilon


def linear(step: int, start: float, end: float, duration: int) -> float:
    """Return the value of a line from `start` at step 0 to `end` at step `duration`, constant after it."""
    if step >= duration:
        return end
    return start + (end - start) * max(step, 0) / duration


def epsilon_schedule(env_steps: int, start: float, end: float, decay_env_steps: int) -> float:
    """Return the epsilon all actors share after `env_steps` agent steps of the whole cluster."""
    return linear(env_steps, start, end, decay_env_steps)
