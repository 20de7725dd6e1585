"""The loss of an update, compiled by torch: fewer and larger kernels for the same numbers.

Only passes and losses are compiled, and with them their backward passes. Gradients are averaged over ranks, clipped and
applied outside, so nothing of an agent's state knows of it: checkpoints fit with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from tidemill.errors import ConfigError

Compile = Literal["auto", "none", "default", "cuda-graphs"]
"""With `cuda-graphs` torch compiles nothing; see `rl/agents/update_graph.py`. A learner decides what `auto` is."""

Loss = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, ...]]
"""From a batch, always of the same shapes, and importance weights [B] to the loss, [], and what else came of it."""


def compiled(loss: Loss, how: Compile, device: torch.device) -> Loss:
    """Return a loss that is compiled when it is first called if `how` is `default`, or as it is.

    Raises:
        ConfigError: torch cannot compile on this machine.
    """
    if how != "default":
        return loss
    _try_out(device)
    return torch.compile(loss, fullgraph=True, dynamic=False)


def _try_out(device: torch.device) -> None:
    """Compile something small, so that a missing compiler is reported at the start and by the setting's name."""
    try:
        torch.compile(lambda x: x + 1.0)(torch.zeros(1, device=device))
    except Exception as error:  # of the compiler, its linker, triton: each has its own
        reason = " ".join(str(error).partition("Set TORCHDYNAMO")[0].split())
        raise ConfigError(
            f"agent.compile asks torch to compile, which it cannot here; install g++, or set it to none ({reason})"
        ) from error
