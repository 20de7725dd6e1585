"""Numbers that are not finite are neither saved nor published, and are never resumed from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.clock import Clock
from tests.support.naming import naming
from tidemill.services.learner.checkpoint.checkpointer import Checkpointer
from tidemill.services.learner.checkpoint.format import Checkpoint
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import Diverged, check_finite
from tidemill.services.learner.status.progress import Progress

_ZERO = torch.tensor(0.0)


def _checkpoint(value: float, steps: int) -> Checkpoint:
    agent = {"weight": torch.tensor([1.0, value]), "optimizer": {"step": 3}}
    return Checkpoint("fake", {}, "", {"learner_steps": steps}, agent, {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_value_that_is_not_finite_is_found(value: float, make: type) -> None:
    """In tensors and arrays, among finite ones; whole numbers and anything but numbers are finite."""
    check_finite([make([1.0, 2.0]), make([3]), 4], "parameters")
    with pytest.raises(Diverged, match=naming("finite")):
        check_finite([make([1.0]), make([1.0, value])], "parameters")


def test_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """The file before it stays the newest; the training thread hears of it at its next look."""
    store, states = CheckpointStore(tmp_path, keep=3), [_checkpoint(2.0, 1), _checkpoint(math.nan, 2)]
    checkpointer = Checkpointer(store, lambda: states.pop(0), every_s=0.0, steps=0, clock=Clock())
    checkpointer.write_now()
    with pytest.raises(Diverged):
        checkpointer.write_now()
    checkpointer.close()
    found = store.newest()
    assert found is not None
    assert found[1].counters == {"learner_steps": 1}


def test_resume_takes_the_newest_finite_checkpoint(tmp_path: Path) -> None:
    """One that holds a NaN is passed over, however it came there."""
    store = CheckpointStore(tmp_path, keep=3)
    store.write(_checkpoint(2.0, 1))
    store.write(_checkpoint(math.inf, 2))
    found = store.newest()
    assert found is not None
    assert found[1].counters == {"learner_steps": 1}


def test_loss_that_is_not_finite_ends_training() -> None:
    """It is named with its value; another metric may be what it likes."""
    clock = Clock()
    progress = Progress(Counters(), log_every_s=10.0, clock=clock)
    progress.record_step(0.01, {"loss": _ZERO, "mean_over_none": _ZERO * math.nan})
    clock.now_s += 2.0
    progress.tick()
    progress.check()
    progress.record_step(0.01, {"actor_loss": _ZERO * math.nan})
    clock.now_s += 2.0
    progress.tick()
    with pytest.raises(Diverged, match=naming("actor_loss nan")):
        progress.check()
