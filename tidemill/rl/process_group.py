"""Several processes that make one update together, each from its own share of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class ProcessGroup(Protocol):
    """The processes that train one agent. All hold the same parameters, and each a share of the batch.

    The batch of an update is the shares of rank 0, 1, ... one after the other, and a loss is a mean over it.
    """

    @property
    def index(self) -> int:
        """Which of them this process is, from 0."""

    @property
    def size(self) -> int:
        """How many there are, at least 1."""

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each gradient over all ranks, the same bits on every rank.

        Every rank must call it as often as the others and with tensors of the same shapes and strides, float32 and of
        one device.
        """

    def add_up(self, flat: Tensor) -> None:
        """Replace every number of `flat`, float32 [N], by its sum over all ranks; the ranks call it like `mean`."""


class SingleProcess:
    """A process that trains by itself."""

    index = 0
    size = 1

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients."""
        return list(gradients)

    def add_up(self, flat: Tensor) -> None:
        """Leave the numbers as they are."""


SINGLE_PROCESS = SingleProcess()
"""The group of an agent that trains in one process."""


def flat_mean(gradients: Sequence[Tensor], size: int, add_up: Callable[[Tensor], object]) -> list[Tensor]:
    """Return the mean of each gradient over `size` ranks: one exchange of one flat tensor.

    The numbers are taken as they are laid out in memory, and so are the means: a convolution's weights may be channels
    last, and need no copy to another order and back.

    Args:
        gradients: Of this rank, float32, of one device.
        size: How many ranks there are.
        add_up: Sums a flat tensor over the ranks in place.
    """
    in_order = [gradient.permute(_outermost_first(gradient)) for gradient in gradients]
    flat = torch.cat([gradient.reshape(-1) for gradient in in_order])
    add_up(flat)
    flat.div_(size)
    parts = flat.split([gradient.numel() for gradient in gradients])
    means = [part.view(gradient.shape) for part, gradient in zip(parts, in_order, strict=True)]
    return [
        mean.movedim(tuple(range(mean.ndim)), _outermost_first(gradient))
        for mean, gradient in zip(means, gradients, strict=True)
    ]


def _outermost_first(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor in the order in which its numbers are laid out in memory."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda dimension: -strides[dimension]))


def draw_normal(
    shape: Sequence[int], group: ProcessGroup, rng: torch.Generator, device: torch.device, dim: int = 0
) -> Tensor:
    """Draw standard normal numbers for this rank's share of a batch.

    Every rank draws for the whole batch and keeps its own rows. So the generators of all ranks stay equal, and an
    update is the one that a single process would make of the whole batch.

    Args:
        shape: Shape of what is returned.
        group: The processes that update together.
        rng: Source of the numbers, equal on all ranks.
        device: Where `rng` is.
        dim: Which dimension of `shape` counts the items of the batch.
    """
    return _share(torch.randn, shape, group, rng, device, dim)


def draw_uniform(
    shape: Sequence[int], group: ProcessGroup, rng: torch.Generator, device: torch.device, dim: int = 0
) -> Tensor:
    """Draw numbers from [0, 1) for this rank's share of a batch; see `draw_normal`."""
    return _share(torch.rand, shape, group, rng, device, dim)


def _share(
    draw: Callable[..., Tensor],
    shape: Sequence[int],
    group: ProcessGroup,
    rng: torch.Generator,
    device: torch.device,
    dim: int,
) -> Tensor:
    rows = shape[dim]
    whole = [rows * group.size if position == dim else size for position, size in enumerate(shape)]
    return draw(whole, generator=rng, device=device).narrow(dim, group.index * rows, rows)
