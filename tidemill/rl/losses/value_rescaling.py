"""The value rescaling of R2D2, in place of clipped rewards (Pohlen et al. 2018, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-3
"""Slope that remains for large values; keeps the inverse's slope bounded."""


def rescale(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x, of any shape."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + EPSILON * value


def unscale(rescaled: Tensor) -> Tensor:
    """Return the inverse of `rescale` (ibid., proposition A.2), of any shape.

    The paper's ((sqrt(1 + 4 e (|x| + 1 + e)) - 1) / (2 e))^2 - 1 loses its digits in float32; multiplied out
    by the conjugate, the inner fraction is 2 (|x| + 1 + e) / (sqrt(...) + 1).
    """
    size = rescaled.abs()
    root = torch.sqrt(1.0 + 4.0 * EPSILON * (size + 1.0 + EPSILON))
    inner = 2.0 * (size + 1.0 + EPSILON) / (root + 1.0)
    return rescaled.sign() * (inner.square() - 1.0)
