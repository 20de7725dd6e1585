"""Soft actor-critic for Pendulum in one file, with its experience in this process: what `sac.py` is compared with.

Twin critics and a learned temperature, by Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018).
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

BATCH_SIZE, LEARNING_STARTS, GAMMA, TAU, LIMIT = 128, 1_000, 0.99, 0.005, 2.0


class ReplayBuffer:
    """The newest transitions."""

    def __init__(self, capacity: int) -> None:
        """Take the memory."""
        self.capacity, self.added, self.rng = capacity, 0, np.random.default_rng(0)
        self.columns: dict[str, NDArray[Any]] = {
            "observation": np.zeros((capacity, 3), np.float32),
            "action": np.zeros((capacity, 1), np.float32),
            "reward": np.zeros(capacity, np.float32),
            "next_observation": np.zeros((capacity, 3), np.float32),
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


def make_network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def act(actor: nn.Sequential, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions [B, 1] drawn from the policy, squashed to -LIMIT .. LIMIT, and the logarithm of their density."""
    mean, log_std = actor(observation).chunk(2, dim=1)
    normal = Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    squash = 2 * (np.log(2) - raw - F.softplus(-2 * raw)) + np.log(LIMIT)  # log of the derivative of LIMIT * tanh
    return LIMIT * torch.tanh(raw), (normal.log_prob(raw) - squash).sum(dim=1)


def main() -> None:
    """Train, and print the mean return of the newest ten episodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="agent decisions")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    env = gymnasium.make("Pendulum-v1")
    actor, critics = make_network(3, 2), nn.ModuleList([make_network(4, 1), make_network(4, 1)])
    targets, log_alpha = copy.deepcopy(critics), torch.zeros(1, requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    buffer = ReplayBuffer(capacity=50_000)
    returns, episode_return, began_s = [0.0], 0.0, time.monotonic()
    observation, _ = env.reset(seed=options.seed)
    for step in range(1, options.steps + 1):
        if step <= LEARNING_STARTS:
            action = rng.uniform(-LIMIT, LIMIT, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = act(actor, torch.as_tensor(observation)[None])[0][0].numpy()
        next_observation, reward, terminated, truncated, _ = env.step(action)
        transition = {"observation": observation, "action": action, "reward": float(reward)}
        transition |= {"next_observation": next_observation, "terminated": terminated}
        buffer.add(transition)
        observation, episode_return = next_observation, episode_return + float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            returns, episode_return = [*returns[-9:], episode_return], 0.0
            print(f"step {step}: mean return {np.mean(returns):.0f}", flush=True)
        if step <= LEARNING_STARTS:
            continue
        data = buffer.sample(BATCH_SIZE)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_density = act(actor, data["next_observation"])
            pairs = torch.cat([data["next_observation"], next_action], dim=1)
            best = torch.cat([target(pairs) for target in targets], dim=1).min(dim=1).values - alpha * next_density
            wanted = data["reward"] + GAMMA * best * ~data["terminated"]
        pairs = torch.cat([data["observation"], data["action"]], dim=1)
        critic_loss = torch.stack([F.mse_loss(critic(pairs)[:, 0], wanted) for critic in critics]).sum()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        new_action, density = act(actor, data["observation"])
        pairs = torch.cat([data["observation"], new_action], dim=1)
        q = torch.cat([critic(pairs) for critic in critics], dim=1).min(dim=1).values
        actor_optimizer.zero_grad()
        (alpha * density - q).mean().backward()
        actor_optimizer.step()
        alpha_optimizer.zero_grad()
        (-log_alpha.exp() * (density.detach() - 1)).mean().backward()  # the wanted entropy: -1 for each action
        alpha_optimizer.step()
        with torch.no_grad():
            for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                old.lerp_(new, TAU)
    print(f"{options.steps / (time.monotonic() - began_s):.0f} steps per second")


if __name__ == "__main__":
    main()
