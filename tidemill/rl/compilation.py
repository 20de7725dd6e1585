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

Compile = Literal["none", "default", "cuda-graphs"]

Loss = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, ...]]
"""From a batch, always of the same shapes, and importance weights [B] to the loss, [], and what else came of it."""


def compiled(loss: Loss, how: Compile, device: torch.device) -> Loss:
    """Return a loss that is compiled when it is first called, or as it is with `none`.

    With `cuda-graphs` a GPU is given all kernels of a pass at once, recorded at the first calls; a CPU knows none.

    Raises:
        ConfigError: torch cannot compile on this machine.
    """
    if how == "none":
        return loss
    _try_out(device)
    mode = "reduce-overhead" if how == "cuda-graphs" else "default"
    inner = torch.compile(loss, fullgraph=True, dynamic=False, mode=mode)
    return _replayed(inner) if how == "cuda-graphs" else inner


def _replayed(inner: Loss) -> Loss:
    """Return copies of what a recorded loss returns: the next call writes to the same memory."""

    def loss(batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        torch.compiler.cudagraph_mark_step_begin()
        return tuple(result.clone() for result in inner(batch, weight))

    return loss


def _try_out(device: torch.device) -> None:
    """Compile something small, so that a missing compiler is reported at the start and by the setting's name."""
    try:
        torch.compile(lambda x: x + 1.0)(torch.zeros(1, device=device))
    except Exception as error:  # of the compiler, its linker, triton: each has its own
        reason = " ".join(str(error).partition("Set TORCHDYNAMO")[0].split())
        raise ConfigError(
            f"agent.compile asks torch to compile, which it cannot here; install g++, or set it to none ({reason})"
        ) from error
