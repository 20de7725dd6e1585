"""Bounds on gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_(gradients: tuple[Tensor, ...] | list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients in place to a common norm of `max_norm` at most, 0 for no bound; return the norm before, []."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
