"""Which number format a network acts in."""

from __future__ import annotations

import copy
import time
from typing import Literal

import torch
from torch import Tensor, nn

Precision = Literal["auto", "float32", "bfloat16"]

_ROUNDS = 5
_WORTHWHILE = 0.8  # bfloat16 costs accuracy, so it must save a fifth of the time


def acting_dtype(network: nn.Module, observation: Tensor, precision: Precision) -> torch.dtype:
    """Return the format for forward passes of `network`.

    Args:
        network: What is passed through; not changed.
        observation: A batch of the size that will be acted on.
        precision: `auto` times both: bfloat16 is twice as fast where the processor multiplies it and slower
            where it does not.
    """
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    half = copy.deepcopy(network).to(torch.bfloat16)
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(_ROUNDS):  # in turn, so that a busy moment meets both; the first round warms up
        for dtype, candidate in ((torch.float32, network), (torch.bfloat16, half)):
            seconds[dtype] = min(seconds[dtype], _forward_s(candidate, observation))
    return torch.bfloat16 if seconds[torch.bfloat16] < _WORTHWHILE * seconds[torch.float32] else torch.float32


@torch.inference_mode()
def _forward_s(network: nn.Module, observation: Tensor) -> float:
    started = time.perf_counter()
    network(observation)
    return time.perf_counter() - started
