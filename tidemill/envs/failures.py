"""Decisions on failed environments: when to restart one, and when it has failed too often. No environment is touched.

A budget counts steps and not minutes: an environment that breaks every thousand steps costs little at any speed, and
one that breaks at every first step is a bug, which is told from it within seconds.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from tidemill.envs.settings import EnvSettings
from tidemill.errors import EnvFailed
from tidemill.logger import LateLogger

KINDS = ("raised", "invalid", "hung", "died", "memory")
"""Ways to fail: step, reset or constructor raised; what was returned is NaN, or of another shape, type or space; no
answer in time; the process ended; it took more than `env.max_memory_mib`."""

_FAILURES = Counter(
    "tidemill_env_failures_total",
    "Failures of environments that were restarted or left out, by kind: raised, invalid, hung, died or memory.",
    ("kind",),
)
for _kind in KINDS:
    _FAILURES.labels(_kind)

_log = LateLogger()

_WINDOW_STEPS = 200
_LONGEST_PAUSE_S = 10.0
_FIRST_SEED, _SEEDS = 100_000_000, 2_000_000_000  # those of training, see the actor's `training_seed`


_counts = dict.fromkeys(KINDS, 0)
_last: deque[str] = deque([""], maxlen=1)


def count_failure(kind: str, reason: str = "") -> None:
    """Count a failure by its kind; keep its reason."""
    _FAILURES.labels(kind).inc()
    _counts[kind] += 1
    _last.append(reason)


def failure_counts() -> dict[str, int]:
    """Return how many failures of each kind this process has counted; nothing for none."""
    return {kind: count for kind, count in _counts.items() if count}


def last_failure() -> str:
    """Return the reason of the last failure that this process has counted; empty if none was given."""
    return _last[0]


class Restarts:
    """The restarts of the environments of one process, in units that are restarted together."""

    def __init__(
        self,
        settings: EnvSettings,
        units: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        """Take the policy of `env.on_failure`; `clock` gives seconds, and no pause is longer than `longest_pause_s`."""
        self._longest_pause_s = min(longest_pause_s, _LONGEST_PAUSE_S)
        self._most = 0 if settings.on_failure == "stop" else settings.max_restarts
        self._policy, self._pause_s, self._clock = settings.on_failure, settings.restart_backoff_s, clock
        self._failed_at: list[deque[int]] = [deque() for _ in range(units)]  # in steps of the unit
        self._steps = np.zeros(units, np.int64)
        self._due_s = [0.0] * units
        self._totals = [0] * units
        self._seed = 0

    def begin(self, seed: int) -> None:
        """Set what the seeds of restarted environments are drawn from."""
        self._seed = seed

    def stepped(self, is_up: NDArray[np.bool_]) -> None:
        """Count a step of the units that are up, bool [units]."""
        self._steps += is_up

    def failed(self, unit: int, error: EnvFailed) -> None:
        """Count a failure and set when to restart.

        Raises:
            EnvFailed: It has failed too often, or the policy is to stop; `is_final`.
        """
        count_failure(error.kind, str(error))
        recent, now = self._failed_at[unit], int(self._steps[unit])
        while recent and recent[0] < now - _WINDOW_STEPS:
            recent.popleft()
        if len(recent) >= self._most:
            raise self._given_up(error, len(recent)) from error
        pause_s = min(self._pause_s * 2.0 ** (len(recent) - 1), self._longest_pause_s) if recent else 0.0
        recent.append(now)
        self._totals[unit] += 1
        self._due_s[unit] = self._clock() + pause_s
        _log.warning(
            f"environment failed, {'resetting' if self._policy == 'drop' else 'restarting'} it",
            kind=error.kind,
            reason=str(error),
            restarts=self._totals[unit],
            in_s=round(pause_s, 1),
            **({"environment": unit} if len(self._totals) > 1 else {}),  # in its own process each is environment 0
        )

    def is_due(self, unit: int) -> bool:
        """True if the pause before the unit's restart is over."""
        return self._clock() >= self._due_s[unit]

    def next_seed(self, unit: int) -> int:
        """Return the seed of its next process: a function of the first seed, the unit and its restarts alone."""
        words = np.random.SeedSequence([self._seed, unit, self._totals[unit]]).generate_state(1)
        return _FIRST_SEED + int(words[0]) % _SEEDS

    def _given_up(self, error: EnvFailed, restarts: int) -> EnvFailed:
        if error.trace:
            sys.stderr.write(error.trace)
            sys.stderr.flush()
        why = f"{restarts} restarts within {_WINDOW_STEPS} steps (env.max_restarts)"
        if self._policy == "stop":
            why = "env.on_failure is 'stop'"
        message = f"{error}; {why}"
        return EnvFailed(message, kind=error.kind, index=error.index, trace=error.trace, is_final=True)
