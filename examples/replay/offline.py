"""Offline: one run writes a table of CartPole by a simple rule with noise, another learns from it the day after.

    tidemill replay --folder data
    python offline.py write
    python offline.py learn

Behaviour cloning of what went well: each item is a step with the return that followed it as its priority, so that a
prioritized table samples it more often.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from tidemill.replay import (
    ReplayClient,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.replay.sampling.adapters import to_torch

_HORIZON = 50


def write(address: str, steps: int) -> None:
    """Play by a rule that errs 30 % of the time, and write every step with the return of the next 50 as priority."""
    signature = signature_like({"observation": np.zeros(4, np.float32), "action": 0})
    by_return = SelectorConfig(SelectorKind.PRIORITIZED, priority_exponent=2.0)
    table = TableConfig("demonstrations", signature, by_return, max_items=100_000, max_item_steps=1)
    rng, env, written = np.random.default_rng(0), gymnasium.make("CartPole-v1"), 0
    with ReplayWriter(address, table) as writer:
        while written < steps:
            for i, (step, left) in enumerate(_episode(env, rng, written)):
                if written + i < steps:
                    writer.append(step)
                    writer.create_item("demonstrations", last=1, priority=min(left, _HORIZON))
            written = min(written + i + 1, steps)
            writer.end_episode()
        writer.flush(timeout_s=60.0)
    print(f"wrote {written} transitions")


def _episode(env: gymnasium.Env[Any, Any], rng: np.random.Generator, seed: int) -> list[tuple[dict[str, Any], int]]:
    """Return the steps of an episode, each with the steps that follow it."""
    observation, _ = env.reset(seed=seed)
    steps, over = [], False
    while not over:
        action = int(observation[2] + 0.3 * observation[3] > 0)
        if rng.random() < 0.3:
            action = int(rng.integers(2))
        steps.append({"observation": observation, "action": action})
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return [(step, len(steps) - i) for i, step in enumerate(steps)]


def learn(address: str, updates: int) -> None:
    """Clone the actions of the table, and say what the clone scores."""
    with ReplayClient(address) as client:
        found = client.describe_table("demonstrations")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with ReplayDataset(address, found.config, 256, timeout_s=60.0) as dataset:
        for _ in range(updates):
            data = to_torch(next(dataset))
            loss = nn.functional.cross_entropy(network(data["observation"][:, 0]), data["action"][:, 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"mean return {_score(network):.0f} from {found.items} transitions")


def _score(network: nn.Module) -> float:
    env, returns = gymnasium.make("CartPole-v1"), []
    for episode in range(5):
        observation, _ = env.reset(seed=1000 + episode)
        over, total = False, 0.0
        while not over:
            with torch.no_grad():
                action = int(network(torch.as_tensor(observation)).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            over, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Write or learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "learn"))
    parser.add_argument("--replay", default="127.0.0.1:7401", help="address of the replay server")
    parser.add_argument("--steps", type=int, default=20_000, help="transitions to write")
    parser.add_argument("--updates", type=int, default=2_000, help="updates to learn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "write":
        write(options.replay, options.steps)
    else:
        learn(options.replay, options.updates)


if __name__ == "__main__":
    main()
