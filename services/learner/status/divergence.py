"""Training that has diverged: numbers that are no longer finite are neither saved nor published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from tidemill.errors import FatalError


class Diverged(FatalError):
    """Parameters, losses or priorities are not finite; no later update can mend them."""


def check_finite(tensors: Iterable[object], what: str) -> None:
    """Raise Diverged if a tensor or array of floating-point numbers has a NaN or an infinity.

    Args:
        tensors: On any device; tensors of whole numbers, and values that are not tensors, count as finite.
        what: What they are, for the message, e.g. `parameters`.
    """
    for each in tensors:
        if isinstance(each, Tensor):
            is_finite = not each.is_floating_point() or bool(torch.isfinite(each).all())
        else:
            array = np.asarray(each)
            is_finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        if not is_finite:
            raise Diverged(f"{what} are not finite")


def lost(metrics: Mapping[str, float]) -> str:
    """Return the names and values of the losses among an agent's metrics that are not finite; empty for none."""
    values = {name: value for name, value in metrics.items() if name.endswith("loss")}
    return ", ".join(f"{name} {value:g}" for name, value in values.items() if not np.isfinite(value))
