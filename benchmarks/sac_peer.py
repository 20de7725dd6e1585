"""Updates per second of processor time of Stable-Baselines3's SAC, with the networks and the batch asked for.

Its replay buffer holds made-up transitions of LunarLanderContinuous; drawing from it is part of its update. Started by
`benchmarks.learner`, with the package's folder in PYTHONPATH.

    python -m benchmarks.sac_peer --hidden 256 256 --batch 256 --seconds 10
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch

_TRANSITIONS = 20_000
_STEPS = 20  # updates between two looks at the clock


def main() -> None:
    """Measure and print one figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256], help="units of each hidden layer")
    parser.add_argument("--batch", type=int, default=256, help="items of one update")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(_rate(options.hidden, options.batch, options.seconds))


def _rate(hidden: list[int], batch: int, seconds: float) -> float:
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    model = SAC(
        "MlpPolicy",
        "LunarLanderContinuous-v3",
        batch_size=batch,
        buffer_size=_TRANSITIONS,
        policy_kwargs={"net_arch": hidden},
        device="cpu",
        seed=1,
    )
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(_TRANSITIONS):
        observation, following = rng.standard_normal((2, 1, 8)).astype(np.float32)
        action, reward = rng.uniform(-1, 1, (1, 2)).astype(np.float32), rng.standard_normal(1)
        model.replay_buffer.add(observation, following, action, reward, np.zeros(1), [{}])
    model.train(_STEPS, batch)
    started, updates, end = time.process_time(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        model.train(_STEPS, batch)
        updates += _STEPS
    return updates / (time.process_time() - started)


if __name__ == "__main__":
    main()
