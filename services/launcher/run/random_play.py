"""Random play of an environment, which finds faults of it before a run starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.envs.checks import FAILURES, check_finite, fault, is_flags
from tidemill.envs.interface import VectorEnv, action_mask_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, FatalError, TidemillError

STEPS = 32


def play_random_steps(env: VectorEnv, settings: EnvSettings, seed: int) -> None:
    """Reset an environment and act at random in it.

    Args:
        env: One or more environments of any kind; Tidemill's own have checks in each step, those of others do not.
        settings: What made them, for messages.
        seed: Of environment and actions.

    Raises:
        ConfigError: It raised something, or returned what cannot be stored or learned from; in one line.
    """
    which = f"env.vector is {settings.vector!r}" if settings.vector else f"env.id is {settings.id!r}"
    rng = np.random.default_rng(seed)
    try:
        _check("reset", env.reset(seed), env)
        for number in range(1, STEPS + 1):
            step = env.step(_action(env, rng))
            _check(f"step {number}", step.observation, env)
            for name in ("terminated", "truncated"):
                if not is_flags(value := getattr(step, name)):
                    raise FatalError(f"its step {number} returned {value!r} as {name}, allowed: an array of bool")
            check_finite(step.observation, step.reward, np.full(env.num_envs, number))
    except TidemillError as error:
        raise ConfigError(f"{which}, but {error}") from error
    except FAILURES as error:  # whatever the user's simulator raises
        raise ConfigError(f"{which}, but it {fault(None, reset=False, error=error)}") from error


def _check(when: str, observation: object, env: VectorEnv) -> None:
    """Raise FatalError if observations are not as the environment's spec has them."""
    found, spec = np.asarray(observation), env.spec
    shape = (env.num_envs, *spec.observation_shape)
    if found.shape != shape or found.dtype != spec.observation_dtype:
        raise FatalError(
            f"its {when} returned observations of {found.dtype} {list(found.shape)}, its spec says "
            f"{spec.observation_dtype} {list(shape)}"
        )


def _action(env: VectorEnv, rng: np.random.Generator) -> NDArray[Any]:
    """Return legal actions drawn uniformly, [N, ...] as the environment takes them."""
    spec, count = env.spec, env.num_envs
    if not spec.action_options:
        return rng.uniform(-1, 1, (count, *spec.action_shape)).astype(np.float32)
    mask, chosen, start = action_mask_of(env), [], 0
    for size in spec.action_options:
        legal = np.ones((count, size), np.bool_) if mask is None else mask[:, start : start + size]
        chosen.append([rng.choice(np.flatnonzero(row)) for row in legal])
        start += size
    actions = np.array(chosen, np.int64).T
    return actions[:, 0] if spec.is_discrete else actions
