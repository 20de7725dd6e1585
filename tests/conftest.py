"""Shared by every test: fixed seeds, one thread for arithmetic, and a mark for the slow kinds."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; child processes inherit it
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # rendering needs no screen

SEED = 20240229

# A property is bounded by its examples, not by the time of one of them on a busy machine.
hypothesis.settings.register_profile("tidemill", deadline=None)
hypothesis.settings.load_profile("tidemill")

_MARKED_FOLDERS = ("process", "learning", "compose")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tests/process, tests/learning and tests/compose; skip what needs a GPU where there is none."""
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0] if item.path.is_relative_to(root) else ""
        if folder in _MARKED_FOLDERS:
            item.add_marker(folder)
        if item.get_closest_marker("requires_cuda") and not sys.modules["torch"].cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Start every test from the same random state; a test that draws numbers makes its own generator."""
    random.seed(SEED)
    np.random.seed(SEED)  # for libraries that still use the global state
    torch = sys.modules.get("torch")  # importing it here would cost every test 2 s
    if torch is not None:
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
