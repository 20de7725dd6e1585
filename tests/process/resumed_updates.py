"""Trains agents on recorded batches, from their checkpoints on; `tests.process.test_exact_resume` starts it.

python -m tests.process.resumed_updates FOLDER STEPS CASE [CASE ...]
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from tests.support.batches import CASES, sampled_batch
from tests.support.learner_fakes import batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.checkpoint.resume import ResumableState, seed_rng
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.progress import Progress
from tidemill.services.learner.training.trainer import Limits, Trainer, TrainerOutputs

_BATCH = 8


class Recorded:
    """The same batches in every process; the position is the number of updates taken."""

    def __init__(self, case: str, agent: Agent, position: int) -> None:
        self._agent, (self._config, self._env_spec) = agent, CASES[case]
        self._position = position

    def take(self, timeout_s: float) -> Batch:
        """Return the next batch."""
        rng = torch.Generator().manual_seed(self._position)
        self._position += 1
        columns = sampled_batch(self._agent, self._config, self._env_spec, _BATCH, rng)
        weight = torch.rand(_BATCH) * float(np.random.random())  # the process's own generators are part of the state
        return batch(*range(_BATCH), columns=columns, weight=weight)


def train(case: str, folder: Path, steps: int, seed: int, *, on_to: int = 0) -> bytes:
    """Continue from the newest checkpoint in a folder, if any, up to a number of steps, and save.

    Return the state; with `on_to`, that of the same agent after so many steps, which are not saved.
    """
    config, env_spec = CASES[case]
    seed_rng(seed)
    agent, counters = build_agent(config, env_spec, seed=seed), Counters()
    resumable = ResumableState(agent, counters, algorithm=config.algorithm, config_digest="")
    store = CheckpointStore(folder / case, keep=1)
    resumable.restore(store)
    progress = Progress(counters, log_every_s=1e9, clock=time.monotonic)
    recorded = Recorded(case, agent, counters.learner_steps)
    control = Control(threading.Event())
    outputs = TrainerOutputs(None)
    Trainer(agent, recorded, outputs, control, counters, progress, Limits(max_learner_steps=steps)).run()
    store.write(resumable.capture())
    Trainer(agent, recorded, outputs, control, counters, progress, Limits(max_learner_steps=max(steps, on_to))).run()
    return resumable.to_bytes()


def main() -> None:
    """Train every case with another seed than the one it was started with."""
    torch.set_num_threads(1)
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    for case in sys.argv[3:]:
        (folder / f"{case}.state").write_bytes(train(case, folder, steps, seed=99))


if __name__ == "__main__":
    main()
