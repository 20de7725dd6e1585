"""Demonstrations of MountainCarContinuous by a rule, as a table on a replay server that a learner may sample.

    tidemill replay --folder demonstrations --listen 127.0.0.1:7411
    python examples/prior_data/demonstrations.py 127.0.0.1:7411
    tidemill train --config examples/prior_data/mountain_car.yaml \
        --learner.sources demonstrations '{fraction: 0.5, replay: "127.0.0.1:7411"}'

The rule pushes in the direction in which the car moves, so that it swings higher each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)

STEP: dict[str, Any] = {
    "observation": np.zeros(2, np.float32),
    "action": np.zeros(1, np.float32),  # in [-1, 1], whatever the bounds of the environment
    "reward": np.float32(0),
    "terminated": False,
    "truncated": False,
    "is_first": False,
}
TABLE = TableConfig(
    "demonstrations",
    signature_like(STEP),
    SelectorConfig(SelectorKind.UNIFORM),
    max_items=100_000,
    max_item_steps=2,  # transitions, for agent.n_step 1
)


def episode(env: gymnasium.Env[Any, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the steps of an episode: what was seen and done, and the reward that followed; at the end what was seen."""
    observation, _ = env.reset(seed=seed)
    is_first, over = True, False
    while not over:
        action = np.array([1.0 if observation[1] >= 0 else -1.0], np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        yield STEP | {
            "observation": observation,
            "action": action,
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated and not terminated,
            "is_first": is_first,
        }
        observation, is_first, over = following, False, terminated or truncated
    yield STEP | {"observation": observation}


def write(address: str, episodes: int) -> tuple[int, float]:
    """Write so many episodes into a new table; return the number of steps and the mean return."""
    with ReplayClient(address) as client:
        client.wait_for_ready(60.0)
        if not client.create_table(TABLE):
            sys.exit(f"the server at {address} has a table {TABLE.name!r} already")
    env, steps, total = gymnasium.make("MountainCarContinuous-v0"), 0, 0.0
    windows = ItemWindow(TABLE.max_item_steps)
    # no agent of a run decides here
    with ReplayWriter(address, TABLE, windows=windows, counts_decisions=False) as writer:
        for number in range(episodes):
            for step in episode(env, seed=1_000 + number):
                writer.append(step)
                steps, total = steps + 1, total + step["reward"]
            writer.end_episode()
    return steps - episodes, total / episodes


def main() -> None:
    """Write and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replay", help="address of the replay server")
    parser.add_argument("--episodes", type=int, default=20, help="episodes to write")
    options = parser.parse_args()
    steps, mean = write(options.replay, options.episodes)
    print(f"wrote {options.episodes} episodes, {steps} steps, mean return {mean:.1f}")


if __name__ == "__main__":
    main()
