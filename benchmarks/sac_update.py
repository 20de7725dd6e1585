"""Updates per second of SAC on one core. Prints the median and best of short blocks.

python -m benchmarks.sac_update --hidden 256 256
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from tidemill.process import keep_freed_memory
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

BLOCK = 20
"""Updates of one timed block."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256], help="units of each hidden layer")
    parser.add_argument("--batch", type=int, default=128, help="items of one update")
    parser.add_argument("--blocks", type=int, default=60, help=f"blocks of {BLOCK} updates")
    parser.add_argument("--precision", default="highest", help="of torch.set_float32_matmul_precision")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()  # as the learner does
    torch.set_float32_matmul_precision(options.precision)
    seconds = time_blocks(tuple(options.hidden), options.batch, options.blocks)
    rate = 1.0 / seconds
    print(
        f"hidden {tuple(options.hidden)}, batch {options.batch}, {options.precision}: "
        f"median {np.median(rate):.0f}, best {rate.max():.0f}, worst {rate.min():.0f} updates/s"
    )


def time_blocks(hidden: tuple[int, ...], batch: int, blocks: int) -> np.ndarray:
    """Return the seconds of one update in each block, [blocks], on LunarLanderContinuous's shapes."""
    spec = EnvSpec((8,), "float32", action_shape=(2,))
    agent = build_agent(SACConfig(hidden_sizes=hidden, batch_size=batch), spec)
    rng = torch.Generator().manual_seed(0)
    transitions = {
        "observation": torch.randn((batch, 8), generator=rng),
        "action": torch.rand((batch, 2), generator=rng) * 2 - 1,
        "n_step_return": torch.randn(batch, generator=rng),
        "bootstrap_discount": torch.full((batch,), 0.99),
        "bootstrap_observation": torch.randn((batch, 8), generator=rng),
    }
    weight = torch.ones(batch)
    seconds = np.empty(blocks)
    for block in range(-2, blocks):  # the first two warm up
        start = time.perf_counter()
        for _ in range(BLOCK):
            agent.update(transitions, weight)
        if block >= 0:
            seconds[block] = (time.perf_counter() - start) / BLOCK
    return seconds


if __name__ == "__main__":
    main()
