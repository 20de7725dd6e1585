"""DQN for CartPole in one file, with its experience in a replay server.

    python dqn.py

The server is in this process, or a separate one: `tidemill replay --folder data`, then `--replay 127.0.0.1:7401`. Kill
that one with SIGKILL and start it again: the program waits for it and continues with all that was acknowledged.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tidemill import replay
from tidemill.replay.sampling.adapters import to_torch

BATCH_SIZE, LEARNING_STARTS, UPDATE_EVERY, TARGET_EVERY, GAMMA = 128, 1_000, 4, 500, 0.99


def make_network() -> nn.Sequential:
    """Return a network from observations to the values of both actions."""
    return nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))


def main() -> None:
    """Train, and print the mean return of the newest 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="agent decisions")
    parser.add_argument("--replay", help="address of a replay server; without it there is one in this process")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    env = gymnasium.make("CartPole-v1")
    network, target = make_network(), make_network()
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
    zeros = np.zeros(4, np.float32)
    example = {"observation": zeros, "action": 0, "reward": 0.0, "next_observation": zeros, "terminated": False}
    uniform = replay.SelectorConfig(replay.SelectorKind.UNIFORM)
    starts = replay.RateLimiterConfig(min_size=LEARNING_STARTS)  # the dataset draws ahead, but nothing before that
    table = replay.TableConfig("cartpole", replay.signature_like(example), uniform, 50_000, 1, rate_limiter=starts)
    address = options.replay or replay.Server().address
    writer = replay.ReplayWriter(address, table, windows=replay.ItemWindow(length=1))
    dataset = replay.ReplayDataset(address, table, BATCH_SIZE, timeout_s=120.0, batches_per_sample=8)
    returns, episode_return, began_s = list[float](), 0.0, time.monotonic()
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
        writer.append(transition)
        observation, episode_return = next_observation, episode_return + float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            returns, episode_return = [*returns[-19:], episode_return], 0.0
        if step == LEARNING_STARTS:
            writer.flush(timeout_s=120.0)  # the table then has `min_size` items
        if step > LEARNING_STARTS and step % UPDATE_EVERY == 0:
            data = {name: column[:, 0] for name, column in to_torch(next(dataset)).items() if name != "weights"}
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
    writer.flush(timeout_s=120.0)
    writer.close()
    dataset.close()
    print(f"{options.steps / (time.monotonic() - began_s):.0f} steps per second")


if __name__ == "__main__":
    main()
