"""Observations of any shape as the vectors that fully connected networks take."""

from __future__ import annotations

import torch
from torch import Tensor


def flat(observation: Tensor) -> Tensor:
    """Return observations [B, ...] as float32 [B, O]; bytes of images become 0 .. 1."""
    vector = observation.flatten(1).float()
    return vector / 255.0 if observation.dtype == torch.uint8 else vector
