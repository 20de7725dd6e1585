"""Soft actor-critic for Pendulum in one file, with its experience in a replay server.

    python sac.py

Twin critics and a learned temperature, by Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018).
The server is in this process, or a separate one: `tidemill replay --folder data`, then `--replay 127.0.0.1:7401`. Kill
that one with SIGKILL and start it again: the program waits for it and continues with all that was acknowledged.
"""

from __future__ import annotations

import argparse
import copy
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from tidemill import replay
from tidemill.replay.sampling.adapters import to_torch

BATCH_SIZE, LEARNING_STARTS, GAMMA, TAU, LIMIT = 128, 1_000, 0.99, 0.005, 2.0


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
    parser.add_argument("--replay", help="address of a replay server; without it there is one in this process")
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
    zeros, no_action = np.zeros(3, np.float32), np.zeros(1, np.float32)
    example = {"observation": zeros, "action": no_action, "reward": 0.0, "next_observation": zeros, "terminated": False}
    uniform = replay.SelectorConfig(replay.SelectorKind.UNIFORM)
    starts = replay.RateLimiterConfig(min_size=LEARNING_STARTS)  # the dataset draws ahead, but nothing before that
    table = replay.TableConfig("pendulum", replay.signature_like(example), uniform, 50_000, 1, rate_limiter=starts)
    address = options.replay or replay.Server().address
    writer = replay.ReplayWriter(address, table, windows=replay.ItemWindow(length=1))
    dataset = replay.ReplayDataset(address, table, BATCH_SIZE, timeout_s=120.0, batches_per_sample=8)
    returns, episode_return, began_s = list[float](), 0.0, time.monotonic()
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
        writer.append(transition)
        observation, episode_return = next_observation, episode_return + float(reward)
        if terminated or truncated:
            observation, _ = env.reset()
            returns, episode_return = [*returns[-9:], episode_return], 0.0
            print(f"step {step}: mean return {np.mean(returns):.0f}", flush=True)
        if step == LEARNING_STARTS:
            writer.flush(timeout_s=120.0)  # the table then has `min_size` items
        if step <= LEARNING_STARTS:
            continue
        data = {name: column[:, 0] for name, column in to_torch(next(dataset)).items() if name != "weights"}
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
    writer.flush(timeout_s=120.0)
    writer.close()
    dataset.close()
    print(f"{options.steps / (time.monotonic() - began_s):.0f} steps per second")


if __name__ == "__main__":
    main()
