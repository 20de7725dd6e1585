"""Gradients pass between ranks as they are laid out in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tidemill.rl.optimizers import averaged_gradients
from tidemill.rl.process_group import SingleProcess, flat_mean


class _Twice(SingleProcess):
    """Two ranks with the same gradients; keeps the flat tensor of this one."""

    size = 2
    sent = torch.empty(0)

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients."""
        return flat_mean(gradients, self.size, self.add_up)

    def add_up(self, flat: Tensor) -> None:
        """Double the numbers."""
        self.sent = flat.clone()
        flat.mul_(2)


def test_means_are_laid_out_as_their_gradients() -> None:
    """Channels last, turned, broadcast, of one number, or of dimensions with a size of 1: none changes its place."""
    images = torch.randn(4, 3, 2, 5).contiguous(memory_format=torch.channels_last)
    gradients = [
        images,
        torch.randn(3, 4).T,
        torch.tensor(1.5),
        torch.randn(1, 6, 1),
        torch.randn(2, 3),
        torch.randn(3).expand(2, 3),
    ]
    group = _Twice()
    means = group.mean(gradients)
    for mean, gradient in zip(means, gradients, strict=True):
        torch.testing.assert_close(mean, gradient, rtol=0, atol=0)
    assert [mean.stride() for mean in means[:3]] == [gradient.stride() for gradient in gradients[:3]]
    torch.testing.assert_close(group.sent[: images.numel()], images.permute(0, 2, 3, 1).flatten(), rtol=0, atol=0)


def test_ranks_add_up_gradients_in_the_order_of_their_parameters() -> None:
    """A kernel chooses the order of a gradient; ranks whose kernels differ must not add up other numbers."""
    layer = nn.Conv2d(3, 4, 2)
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    factor = torch.randn(4, 3, 2, 2)
    group = _Twice()
    (gradient,) = averaged_gradients((layer.weight * factor).sum(), [layer.weight], group)
    torch.testing.assert_close(gradient, factor, rtol=0, atol=0)
    torch.testing.assert_close(group.sent, factor.permute(0, 2, 3, 1).flatten(), rtol=0, atol=0)
