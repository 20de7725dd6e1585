"""DQN for CartPole in JAX in one file, with its experience in a replay server.

    pip install jax
    python dqn_jax.py

The server is in this process, or a separate one: `tidemill replay --folder data`, then `--replay 127.0.0.1:7401`. Kill
that one with SIGKILL and start it again: the program waits for it and continues with all that was acknowledged.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from tidemill import replay
from tidemill.replay.sampling.adapters import to_jax

Params = Any

BATCH_SIZE, LEARNING_STARTS, UPDATE_EVERY, TARGET_EVERY, GAMMA = 128, 1_000, 4, 500, 0.99


def make_params(rng: np.random.Generator) -> Params:
    """Return the parameters of a network from observations to the values of both actions: weights and biases."""
    sizes = ((4, 120), (120, 84), (84, 2))
    return [(rng.uniform(-1, 1, size) / np.sqrt(size[0]), np.zeros(size[1])) for size in sizes]


@jax.jit  # type: ignore[untyped-decorator] # it has no types
def values(params: Params, observation: jax.Array) -> jax.Array:
    """Return the values of both actions, [..., 2]."""
    for weight, bias in params[:-1]:
        observation = jax.nn.relu(observation @ weight + bias)
    weight, bias = params[-1]
    return observation @ weight + bias


def loss(params: Params, target: Params, data: dict[str, jax.Array]) -> jax.Array:
    """Return the mean squared error of one-step Q-learning."""
    best = values(target, data["next_observation"]).max(axis=1)
    wanted = data["reward"] + GAMMA * best * ~data["terminated"]
    q = jnp.take_along_axis(values(params, data["observation"]), data["action"][:, None], axis=1)[:, 0]
    return ((q - wanted) ** 2).mean()


@jax.jit  # type: ignore[untyped-decorator] # it has no types
def update(state: Params, target: Params, data: dict[str, jax.Array]) -> Params:
    """Return parameters, first and second moments and their count after a step of Adam (Kingma & Ba, 2015)."""
    params, first, second, count = state
    gradient, tree = jax.grad(loss)(params, target, data), jax.tree.map
    first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    rate = 5e-4 * jnp.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
    params = tree(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, first, second, count + 1


def main() -> None:
    """Train, and print the mean return of the newest 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="agent decisions")
    parser.add_argument("--replay", help="address of a replay server; without it there is one in this process")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    env = gymnasium.make("CartPole-v1")
    target = jax.device_put(make_params(rng))
    zero = jax.tree.map(jnp.zeros_like, target)
    state = (target, zero, zero, 0)
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
            action = int(values(state[0], observation).argmax())
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
            data = {name: column[:, 0] for name, column in to_jax(next(dataset)).items() if name != "weights"}
            state = update(state, target, data)
        if step % TARGET_EVERY == 0:
            target = state[0]
            print(f"step {step}: mean return {np.mean(returns):.0f}", flush=True)
    writer.flush(timeout_s=120.0)
    writer.close()
    dataset.close()
    print(f"{options.steps / (time.monotonic() - began_s):.0f} steps per second")


if __name__ == "__main__":
    main()
