"""SAC on Pendulum whose velocity is given in thousandths of its unit, with and without normalized observations.

One process each: an environment, a table of NumPy arrays, and an update for every decision after the random ones. The
policy that acts gets parameters every 50 updates. A score is the mean return of ten episodes that start from other
seeds than training. Only scores are compared, so the machine need not be quiet.

    python -m benchmarks.normalized_observations [--seeds 21 22 23] [--env-steps 6000] [--dry-run]
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rows import Row, write
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

_SPEC = EnvSpec((3,), "float32", action_shape=(1,))
_UNIT = np.array([1.0, 1.0, 1_000.0], np.float32)
_LARGEST_ACTION = 2.0
_PUBLISH_EVERY = 50
_EVALUATED_FROM = 10_000
"""First seed of the episodes that are scored."""
_CONFIG = SACConfig(hidden_sizes=(64, 64), batch_size=64, learning_rate=1e-3, start_steps=1_000)


def main() -> None:
    """Train all seeds with and without; write benchmarks/results/normalized_observations.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[21, 22, 23], help="of the runs")
    parser.add_argument("--env-steps", type=int, default=6_000, help="decisions of a run")
    parser.add_argument("--dry-run", action="store_true", help="print, and write no file")
    options = parser.parse_args()
    runs = [(is_normalized, seed, options.env_steps) for seed in options.seeds for is_normalized in (True, False)]
    with multiprocessing.get_context("spawn").Pool(len(runs)) as pool:
        found = dict(zip(runs, pool.starmap(_score, runs), strict=True))
    rows: list[Row] = [
        {
            "name": f"mean return after training, observations {'normalized' if is_normalized else 'as they are'}",
            "unit": "return",
            "env_steps": options.env_steps,
            "seeds": options.seeds,
            "ours": [round(found[is_normalized, seed, options.env_steps], 1) for seed in options.seeds],
        }
        for is_normalized in (True, False)
    ]
    if options.dry_run:
        for each in rows:
            print(each)
        return
    write("normalized_observations", rows)


def _score(is_normalized: bool, seed: int, env_steps: int) -> float:
    """Return the mean return of ten episodes after training."""
    torch.set_num_threads(1)
    config = dataclasses.replace(_CONFIG, normalize_observations=is_normalized)
    agent, policy = build_agent(config, _SPEC, seed=seed), build_policy(config, _SPEC, seed=seed)
    rng = np.random.default_rng(seed)
    env, builder = gymnasium.make("Pendulum-v1"), PolicyInputBuilder(1, _SPEC, 0)
    seen, next_seen = np.zeros((2, env_steps, 3), np.float32)
    action, reward = np.zeros((env_steps, 1), np.float32), np.zeros(env_steps, np.float32)
    observation, is_first = env.reset(seed=seed)[0], True
    for step in range(env_steps):
        seen[step] = observation * _UNIT
        output = policy.act(builder.build(seen[step][None], np.array([is_first])), step)
        action[step] = output.action[0]
        observation, gained, _, is_over, _ = env.step(_LARGEST_ACTION * action[step])
        reward[step], next_seen[step] = gained, observation * _UNIT
        is_first = bool(is_over)
        if is_first:
            observation = env.reset()[0]
        if step < config.start_steps:
            continue
        drawn = rng.integers(step + 1, size=config.batch_size)
        arrays: dict[str, NDArray[Any]] = {
            "observation": seen[drawn],
            "action": action[drawn],
            "n_step_return": reward[drawn],
            "bootstrap_discount": np.full(config.batch_size, config.gamma, np.float32),
            "bootstrap_observation": next_seen[drawn],
        }
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        agent.update(batch, torch.ones(config.batch_size))
        if step % _PUBLISH_EVERY == 0:
            policy.load(agent.policy_state())
    policy.load(agent.policy_state())
    return float(np.mean([_episode(policy, _EVALUATED_FROM + number) for number in range(10)]))


def _episode(policy: Policy, seed: int) -> float:
    env, builder = gymnasium.make("Pendulum-v1"), PolicyInputBuilder(1, _SPEC, 0)
    observation, total, is_over, is_first = env.reset(seed=seed)[0], 0.0, False, True
    while not is_over:
        seen = builder.build((observation * _UNIT)[None], np.array([is_first]))
        action = policy.act(seen, evaluation=True).action[0]
        observation, gained, _, is_over, _ = env.step(_LARGEST_ACTION * action)
        total, is_first = total + float(gained), False
    return total


if __name__ == "__main__":
    main()
