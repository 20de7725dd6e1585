"""The state of the process's random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_rng(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the state of all of them, as a tree that a checkpoint can hold."""
    numpy_state: dict[str, Any] = dict(np.random.get_state(legacy=False))
    words = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": numpy_state | {"state": {"key": words["key"].tolist(), "pos": int(words["pos"])}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def fits_devices(state: dict[str, Any]) -> bool:
    """Return whether `load_rng_state` can set all generators of the GPUs that the state was taken with."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return len(state["cuda"]) == count


def load_rng_state(state: dict[str, Any]) -> None:
    """Continue from what `rng_state` returned; GPU states are skipped where their number differs."""
    random.setstate(state["python"])
    words = state["numpy"]["state"]
    key = np.asarray(words["key"], dtype=np.uint32)
    np.random.set_state(state["numpy"] | {"state": {"key": key, "pos": words["pos"]}})
    torch.set_rng_state(state["torch"])
    if state["cuda"] and fits_devices(state):
        torch.cuda.set_rng_state_all(state["cuda"])
