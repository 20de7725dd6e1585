"""A step of Adam with and without denormals, where a quarter of the weights got no gradient for 2,000 steps.

Their first moments have then faded to denormal numbers, which a learner takes for zero. A checkpoint of DQN on
LunarLander after 99,593 updates of 128 had 28 % of the first and 23 % of the second moments of its large layers among
them, one of Pong after 4,629 updates of 32 had 30 to 60 % of the first.

    python -m benchmarks.denormals [--rounds 9]
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.rows import Row, row, write
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.rl.agents.dqn import build_network
from tidemill.rl.optimizers import Adam
from tidemill.rl.settings.q_learning import DQNConfig

_FADING_STEPS = 2_000
_SHARE = 0.25
_BLOCK_S = 0.2
_NETWORKS = {
    "LunarLander, 256 256": (DQNConfig(network="mlp", hidden_sizes=(256, 256)), "LunarLander-v3"),
    "Pong, nature": (DQNConfig(network="nature"), "ALE/Pong-v5"),
}


def main() -> None:
    """Measure and print; write benchmarks/results/denormals.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each variant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write("denormals", [_measure(name, options.rounds) for name in _NETWORKS])


def _measure(name: str, rounds: int) -> Row:
    config, env_id = _NETWORKS[name]
    weights = list(build_network(config, spec_of(EnvSettings(id=env_id)), seed=1).parameters())
    rng = torch.Generator().manual_seed(1)
    first = [torch.randn(weight.shape, generator=rng) * 1e-3 for weight in weights]
    gradients = [gradient.clone() for gradient in first]
    for gradient in gradients:
        gradient.view(-1)[: round(_SHARE * gradient.numel())] = 0.0
    rates: dict[bool, list[float]] = {True: [], False: []}
    adams = {flushed: Adam([weight.detach().clone() for weight in weights], 1e-4) for flushed in rates}
    for flushed, adam in adams.items():
        torch.set_flush_denormal(flushed)
        adam.step(first)
        for _ in range(_FADING_STEPS):
            adam.step(gradients)
    for _ in range(rounds):
        for flushed, found in rates.items():
            torch.set_flush_denormal(flushed)
            found.append(_rate(adams[flushed], gradients))
    torch.set_flush_denormal(False)
    return row(f"steps of Adam per core second, {name}, denormals as zero against as they are", "1/s", *rates.values())


def _rate(adam: Adam, gradients: list[torch.Tensor]) -> float:
    done, started = 0, time.thread_time()
    while (used := time.thread_time() - started) < _BLOCK_S:
        adam.step(gradients)
        done += 1
    return done / used


if __name__ == "__main__":
    main()
