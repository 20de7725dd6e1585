"""The test of what Tidemill has trained, by the evaluation of the race. Training is `tidemill train` itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import tidemill
from benchmarks.race.evaluation import Act
from benchmarks.race.peers.course import Course, run
from benchmarks.race.tasks import Task
from benchmarks.race.tidemill_run import RUN


def train(task: Task, seed: int, course: Course) -> None:
    """Refuse: the race starts `tidemill train`."""
    raise SystemExit(f"seed {seed} of {task.name} is trained by `tidemill train`, into {course.folder}")


def load(task: Task, folder: Path) -> Act:
    """Return the policy that training ended with."""
    if task.is_atari:
        import ale_py

        gymnasium.register_envs(ale_py)
    with gymnasium.make(task.env_id) as env:
        policy = tidemill.load_policy(folder / RUN, "latest", action_space=env.action_space)

    def act(observation: NDArray[Any]) -> NDArray[np.generic]:
        if task.is_atari:
            return policy.act(observation[:, -1])  # it has the frames before
        policy.reset()
        return policy.act(observation)

    return act


if __name__ == "__main__":
    run(train, load)
