"""bsuite's experiments (Osband et al., 2020) as environments.

`--env.id suites.bsuite_experiments:BsuiteEnv --env.kwargs bsuite_id catch/0`. With `--env.kwargs log_to FOLDER` the
environment that is trained in writes bsuite's CSV file there, which bsuite's own analysis reads.
"""

from __future__ import annotations

from typing import Any

import bsuite
import dm_env
import gymnasium
import numpy as np
from bsuite import sweep
from bsuite.logging import csv_logging
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class BsuiteEnv(gymnasium.Env[Observation, np.int64]):
    """An experiment of bsuite, which ignores the seed of `reset`: its id prescribes a seed, or that it is random.

    Args:
        bsuite_id: Experiment and setting, such as `deep_sea/3`.
        log_to: Folder of bsuite's CSV file, which is overwritten; empty: none. bsuite scores the rewards of one
            environment while it is learned in, so set `launcher.actors` and `env.num_envs` to 1.
        training: Whether an actor makes it. Evaluation is not logged.
    """

    def __init__(self, bsuite_id: str, log_to: str = "", *, training: bool = False) -> None:
        name, _ = bsuite.bsuite.unpack_bsuite_id(bsuite_id)
        env = bsuite.bsuite.load(name, sweep.SETTINGS[bsuite_id])
        shape = env.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(env.action_spec().num_values)
        logs = training and log_to
        self._env: dm_env.Environment = csv_logging.wrap_environment(env, bsuite_id, log_to, True) if logs else env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the first observation [...] of an episode."""
        super().reset(seed=seed, options=options)
        return self._env.reset().observation, {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and infos; a last step of discount 0 terminates."""
        step = self._env.step(int(action))
        terminated = step.last() and step.discount == 0
        return step.observation, float(step.reward), terminated, step.last() and not terminated, {}
