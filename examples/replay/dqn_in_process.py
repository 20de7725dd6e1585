"""DQN for CartPole in one file, with its experience in this process: what `dqn.py` is compared with."""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn import functional as F

BATCH_SIZE, LEARNING_STARTS, UPDATE_EVERY, TARGET_EVERY, GAMMA = 128, 1_000, 4, 500, 0.99


class ReplayBuffer:
    """The newest transitions."""

    def __init__(self, capacity: int) -> None:
        """Take the memory."""
        self.capacity, self.added, self.rng = capacity, 0, np.random.default_rng(0)
        self.columns: dict[str, NDArray[Any]] = {
            "observation": np.zeros((capacity, 4), np.float32),
            "action": np.zeros(capacity, np.int64),
            "reward": np.zeros(capacity, np.float32),
            "next_observation": np.zeros((capacity, 4), np.float32),
            "terminated": np.zeros(capacity, np.bool_),
        }

    def add(self, transition: dict[str, ArrayLike]) -> None:
        """Keep a transition."""
        for name, value in transition.items():
            self.columns[name][self.added % self.capacity] = value
        self.added += 1

    def sample(self, count: int) -> dict[str, torch.Tensor]:
        """Return transitions drawn at random."""
        rows = self.rng.integers(min(self.added, self.capacity), size=count)
        return {name: torch.from_numpy(column[rows]) for name, column in self.columns.items()}


def make_network() -> nn.Sequential:
    """Return a network from observations to the values of both actions."""
    return nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))


def main() -> None:
    """Train, and print the mean return of the newest 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="agent decisions")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    env = gymnasium.make("CartPole-v1")
    network, target = make_network(), make_network()
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
    buffer = ReplayBuffer(capacity=50_000)
    returns, episode_return, began_s = [0.0], 0.0, time.monotonic()
    observation, _ = env.reset(seed=options.seed)
    for step in range(1, options.steps + 1):
        if rng.random() < max(0.05, 1 - 2 * step / options.steps):
            action = int(rng.integers(2))
        else:
            with torch.no_grad():
                action = int(network(torch.as_tensor(observation)).argmax())
        next_observation, reward, terminated, truncated, _ = env.step(action)
        transition = {"observation": observation, "action": action, "reward": float(reward)}
        transition |= {"next_observation": next_observation, "terminated": terminated}
        buffer.add(transition)
        observation, episode_return = next_observation, episode_return + float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            returns, episode_return = [*returns[-19:], episode_return], 0.0
        if step > LEARNING_STARTS and step % UPDATE_EVERY == 0:
            data = buffer.sample(BATCH_SIZE)
            with torch.no_grad():
                best = target(data["next_observation"]).max(dim=1).values
                wanted = data["reward"] + GAMMA * best * ~data["terminated"]
            q = network(data["observation"]).gather(1, data["action"][:, None])[:, 0]
            loss = F.mse_loss(q, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % TARGET_EVERY == 0:
            target.load_state_dict(network.state_dict())
            print(f"step {step}: mean return {np.mean(returns):.0f}", flush=True)
    print(f"{options.steps / (time.monotonic() - began_s):.0f} steps per second")


if __name__ == "__main__":
    main()
