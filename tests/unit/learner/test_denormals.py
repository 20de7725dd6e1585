"""Moments that fade end at zero in a learner, not among the numbers that a processor is slow with."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FADE = """
import sys, threading, torch
from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.rl.optimizers import Adam
from tidemill.services.learner.learner import Learner
settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "learner": {"device": "cpu", "threads": 2}}
if "learner" in sys.argv:
    Learner(from_document(LearnerConfig, settings), threading.Event())._build()
weights = [torch.zeros(2**18)]
adam = Adam(weights, 1e-3)
adam.step([torch.full((2**18,), 1e-3)])
for _ in range(1000):
    adam.step([torch.zeros(2**18)])
mean = adam.state_dict()["mean"]["0"]
torch.set_flush_denormal(False)
print(int((mean != 0).sum()))
"""


@pytest.mark.parametrize("words, left", [(["learner"], 0), ([], 2**18)])
def test_moments_without_gradients_become_zero(words: list[str], left: int) -> None:
    """On every thread that computes. Without a learner they stay: nine tenths of the smallest round up to it."""
    command = [sys.executable, "-c", _FADE, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout.split()[-1]) == left
