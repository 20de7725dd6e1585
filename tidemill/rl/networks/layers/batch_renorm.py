"""Batch renormalisation (Ioffe 2017) of several equal networks at once, with gradients written out.

In a pass by the batch's statistics an input x becomes (x - mean) / std * ratio + offset, which is then scaled and
shifted as learned. Mean and standard deviation are the batch's, and their gradient is followed. Ratio and offset are
constants that bring the result to what the running statistics would have made of x, within bounds: with those of
`BATCH_NORM` they do nothing. In any other pass the running statistics stand in for the batch's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

EPSILON = 1e-3
"""Added to the variance of a batch; it and the next are those of CrossQ in Stable-Baselines3's contrib package."""

STATISTICS_SHARE = 0.01
"""Of one batch in the running statistics."""


class RenormBounds(NamedTuple):
    """Bounds on the correction of a batch's statistics by the running ones.

    Attributes:
        ratio: Largest ratio of the two standard deviations, either way, at least 1.
        offset: Largest distance of the two means, in running standard deviations.
    """

    ratio: float
    offset: float


BATCH_NORM = RenormBounds(1.0, 0.0)
"""No correction: plain batch normalisation (Ioffe & Szegedy 2015)."""

RENORM = RenormBounds(3.0, 5.0)
"""Of Ioffe 2017, section 4, once the running statistics can be relied on."""


class Renormalised(NamedTuple):
    """Results of a forward pass that the backward pass needs; E networks, a batch of B, W inputs.

    Attributes:
        output: [E, B, W].
        inner: The same before scale and shift, [E, B, W].
        slope: Change of `inner` by x if the statistics stood still, [E, 1, W].
        standard: (x - mean) / std by the batch's statistics, [E, B, W]; None in a pass by the running ones.
        mean: Of the batch, [E, 1, W], or None.
        std: Of the batch, [E, 1, W], or None.
    """

    output: Tensor
    inner: Tensor
    slope: Tensor
    standard: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None


class BatchRenorm(nn.Module):
    """Scales the inputs of each of E networks, [E, B, W], to mean 0 and standard deviation 1, then as is learned.

    The state has its running statistics in float64, which actors get unrounded, as those of
    `tidemill.rl.normalization.Standardization`.
    """

    running_mean: Tensor
    running_std: Tensor

    def __init__(self, ensemble_size: int, inputs: int) -> None:
        super().__init__()
        shape = (ensemble_size, 1, inputs)
        self.scale = nn.Parameter(torch.ones(shape))
        self.shift = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_std", torch.ones(shape))

    def forward(self, x: Tensor, bounds: RenormBounds | None = None) -> Renormalised:
        """Return the result for x [E, B, W] by the batch's statistics within `bounds`; None: by the running ones."""
        if bounds is None:
            slope = self.running_std.reciprocal()
            inner = (x - self.running_mean) * slope
            return Renormalised(torch.addcmul(self.shift, inner, self.scale), inner, slope)
        variance, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
        std = (variance + EPSILON).sqrt()
        standard = (x - mean) / std
        ratio = (std / self.running_std).clamp(1.0 / bounds.ratio, bounds.ratio).detach()
        offset = ((mean - self.running_mean) / self.running_std).clamp(-bounds.offset, bounds.offset).detach()
        inner = torch.addcmul(offset, standard, ratio)
        output = torch.addcmul(self.shift, inner, self.scale)
        return Renormalised(output, inner, ratio / std, standard, mean, std)

    def backward(self, saved: Renormalised, gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of x, [E, B, W], and of scale and shift, from that of the output, [E, B, W]."""
        affine = [(gradient * saved.inner).sum(dim=1, keepdim=True), gradient.sum(dim=1, keepdim=True)]
        flowing = gradient * self.scale
        if saved.standard is not None:  # the batch's mean and deviation follow each of its items
            along = (flowing * saved.standard).mean(dim=1, keepdim=True)
            flowing = flowing - flowing.mean(dim=1, keepdim=True) - saved.standard * along
        return flowing * saved.slope, affine

    @torch.no_grad()
    def track(self, mean: Tensor, std: Tensor) -> None:
        """Move the running statistics towards those of a batch, each [E, 1, W]."""
        self.running_mean.lerp_(mean, STATISTICS_SHARE)
        self.running_std.lerp_(std, STATISTICS_SHARE)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in ("running_mean", "running_std"):
            destination[prefix + name] = destination[prefix + name].double()
