"""The ranks that every loss asserts on entry."""

from __future__ import annotations

from torch import Tensor


def assert_rank(rank: int, **tensors: Tensor) -> None:
    """Fail with the name and shape of a tensor that has another rank."""
    for name, tensor in tensors.items():
        assert tensor.ndim == rank, f"{name} must have rank {rank}, got shape {tuple(tensor.shape)}"
