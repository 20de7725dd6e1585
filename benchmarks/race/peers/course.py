"""A peer's way through a training: evaluations at their places, and its command line.

python -m benchmarks.race.peers.NAME train TASK SEED FOLDER [--decisions N]
python -m benchmarks.race.peers.NAME test TASK SEED FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.race.evaluation import Act, play
from benchmarks.race.tasks import EVALUATION_SEED, TASKS, TEST_SEED, Task

STARTED_VARIABLE = "RACE_STARTED_S"
"""Environment variable with the monotonic time at which the contender's first process was started."""


class Course:
    """Evaluates when it is due and writes FOLDER/curve.jsonl."""

    def __init__(self, task: Task, folder: Path) -> None:
        """Begin a training whose results go to a folder."""
        self.task, self.folder = task, folder
        self._started_s = float(os.environ.get(STARTED_VARIABLE) or time.monotonic())
        self._next = task.every
        self._last = 0

    def at(self, decisions: int, updates: int, act: Act) -> None:
        """Evaluate a policy if that is due.

        Args:
            decisions: Agent decisions so far.
            updates: Batches learned from so far.
            act: The deterministic policy.
        """
        if decisions < self._next:
            return
        self._next = (decisions // self.task.every + 1) * self.task.every
        self._last = decisions
        seeds = range(EVALUATION_SEED, EVALUATION_SEED + self.task.evaluation_episodes)
        returns = play(self.task.env_id, act, seeds)
        point = {
            "decisions": decisions,
            "updates": updates,
            "seconds": round(time.monotonic() - self._started_s, 3),
            "mean": statistics.fmean(returns),
        }
        with (self.folder / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")

    def end(self, decisions: int, updates: int, act: Act, versions: dict[str, str]) -> None:
        """Evaluate the policy that training ended with, unless that was done, and write FOLDER/peer.json."""
        if self._last < decisions:
            self._next = decisions
            self.at(decisions, updates, act)
        document = {"decisions": decisions, "updates": updates, "versions": versions}
        (self.folder / "peer.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


def run(train: Callable[[Task, int, Course], None], load: Callable[[Task, Path], Act]) -> None:
    """Carry out the command line.

    Args:
        train: Trains on a task with a seed, and leaves the policy in the course's folder.
        load: Returns the policy that a folder holds.
    """
    parser = argparse.ArgumentParser(description="A peer's training, or the test of what it has trained.")
    parser.add_argument("what", choices=["train", "test"])
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--decisions", type=int, default=0, help="instead of the task's")
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    if arguments.decisions:
        task = dataclasses.replace(task, decisions=arguments.decisions)
    if arguments.what == "train":
        train(task, arguments.seed, Course(task, arguments.folder))
    else:
        write_test(task, load(task, arguments.folder), arguments.folder)


def write_test(task: Task, act: Act, folder: Path) -> None:
    """Play the fresh episodes and write FOLDER/test.json."""
    returns = play(task.env_id, act, range(TEST_SEED, TEST_SEED + task.test_episodes))
    (folder / "test.json").write_text(json.dumps({"returns": returns}) + "\n", encoding="utf-8")
