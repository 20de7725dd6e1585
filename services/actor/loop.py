"""The acting loop: newest parameters, one decision for all environments, one step, one row a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from services.actor.metrics import ActorMetrics
from services.actor.writer import StreamWriter
from tidemill.envs.interface import Tick, VectorEnv
from tidemill.params.blob import unpack
from tidemill.params.watcher import ParamsWatcher
from tidemill.rl.agents.interface import Policy
from tidemill.rl.percept import Perception

_log = structlog.get_logger()

_STOP_CHECK_S = 0.5


@dataclass
class PolicyParams:
    """Keeps a policy on the newest parameters the watcher has fetched."""

    watcher: ParamsWatcher
    policy: Policy
    version: int = 0
    env_steps: int = 0
    """Agent decisions of the whole cluster when they were published; one replay shard knows only of its own actors."""

    def wait(self, stop: threading.Event) -> bool:
        """Wait for the first parameters; return False if `stop` came before them."""
        while not stop.is_set():
            if self.watcher.wait(_STOP_CHECK_S) is not None:
                self.refresh()
                return True
        return False

    def refresh(self) -> None:
        """Load the newest parameters if they are newer than the policy's; never waits."""
        params = self.watcher.newest()
        if params is not None and params.version.version > self.version:
            self.policy.load({name: torch.from_numpy(value) for name, value in unpack(params.blob).items()})
            self.version, self.env_steps = params.version.version, params.version.metadata.env_steps


class ActingLoop:
    """Steps the environments until told to stop."""

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        params: PolicyParams,
        writer: StreamWriter,
        metrics: ActorMetrics,
        pace: Callable[[], None],
    ) -> None:
        """Put the parts together.

        Args:
            env: The environments.
            policy: Chooses the actions.
            params: Keeps the policy fresh.
            writer: Takes the rows.
            metrics: Counts them.
            pace: Called once a tick; sleeps if the actor shall not run at full speed.
        """
        self._env, self._policy, self._params = env, policy, params
        self._writer, self._metrics, self._pace = writer, metrics, pace
        self._perception = Perception(env.num_envs, env.spec, policy.memory_size)

    def run(self, seed: int, stop: threading.Event) -> None:
        """Act until `stop` is set; the environments start from `seed`."""
        observation, last_reward = self._env.reset(seed), None
        is_first = np.ones(self._env.num_envs, dtype=np.bool_)
        while not stop.is_set():
            tick = self._step(observation, is_first, last_reward)
            observation, is_first, last_reward = tick.observation, tick.is_first, tick.reward
            self._pace()

    def _step(
        self,
        observation: NDArray[np.generic],
        is_first: NDArray[np.bool_],
        last_reward: NDArray[np.float32] | None,
    ) -> Tick:
        started = time.perf_counter()
        self._params.refresh()
        percept = self._perception.perceive(observation, is_first, last_reward)
        decision = self._policy.explore(percept, max(self._writer.env_steps, self._params.env_steps))
        self._perception.decided(decision)
        decided = time.perf_counter()
        tick = self._env.step(decision.action)
        stepped = time.perf_counter()
        row = {
            "observation": observation,
            "action": decision.action,
            "reward": tick.reward,
            "terminated": tick.terminated,
            "truncated": tick.truncated,
            "is_first": is_first,
        }
        self._writer.add(row, decision.priority_inputs, tick.was_reset, self._params.version, percept.memory)
        self._metrics.count(tick, self._params.version)
        self._metrics.time(act=decided - started, step=stepped - decided, write=time.perf_counter() - stepped)
        return tick


def pace_of(max_env_steps_per_s: float, num_envs: int, stop: threading.Event) -> Callable[[], None]:
    """Return what keeps a loop of `num_envs` environments at or under a rate; 0 means no limit."""
    if max_env_steps_per_s <= 0:
        return lambda: None
    period_s = num_envs / max_env_steps_per_s
    due = time.monotonic()

    def pace() -> None:
        nonlocal due
        due = max(due + period_s, time.monotonic() - 1.0)  # a pause is not made up for by a burst
        stop.wait(max(0.0, due - time.monotonic()))

    return pace
