"""Observations and rewards of about unit scale, by what was seen of them so far.

Stable-Baselines3's VecNormalize and gymnasium's wrappers do this in an environment. Here the learner counts, so that
all actors share what is known, and a version of the parameters carries the mean and the scale that it acts by. The
statistics are of what updates learned from; replayed transitions are stored raw and normalized by those of now.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.losses.advantages import backwards
from tidemill.rl.process_group import ProcessGroup

CLIP = 10.0
"""Bound of what is normalized, in standard deviations; as in VecNormalize."""
_EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Count, mean and variance of all values so far, for each element of a shape, float64."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, *shape: int) -> None:
        """Begin without any: with mean 0 and variance 1."""
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The standard deviation, float32; never 0."""
        return (self.variance + _EPSILON).sqrt().float()

    @torch.no_grad()
    def add(self, values: Tensor, mask: Tensor, group: ProcessGroup) -> None:
        """Count the values of all ranks (Chan, Golub and LeVeque 1979, eq. 2.1).

        Args:
            values: Those of this rank, float32 [N, ...].
            mask: How much each of them counts: 0, 1 or an importance weight, float32 [N].
            group: The ranks, all of which call this.
        """
        mask = mask.reshape(-1, *[1] * (values.ndim - 1))
        near = values - self.mean.float()  # sums of float32 lose what is small beside them
        count, total = group.mean([mask.sum(), (mask * near).sum(dim=0)])
        moved = total / count.clamp(min=1.0 / group.size)
        (spread,) = group.mean([(mask * (near - moved).square()).sum(dim=0)])
        added, moved = count.double() * group.size, moved.double()
        together = (self.count + added).clamp(min=1.0)
        share = added / together
        within = self.variance * (1.0 - share) + spread.double() * group.size / together
        self.variance.copy_(within + moved.square() * share * (1.0 - share))
        self.mean.add_(moved * share)
        self.count.add_(added)


class Standardization(nn.Module):
    """Features [B, F] -> the same less a mean, by a scale, within `CLIP`. At first only the clip applies.

    Both are float64: what actors get is rounded to float16 where it is float32, which a mean far from 0 does not bear.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("std", torch.ones(features, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        """Return the standardized features, [B, F]."""
        return ((features - self.mean.float()) / self.std.float()).clamp(-CLIP, CLIP)

    def take(self, moments: RunningMoments) -> None:
        """Use the mean and the standard deviation of what was counted."""
        self.mean.copy_(moments.mean)
        self.std.copy_(moments.std)


def discounted_sums(reward: Tensor, continues: Tensor, earlier: Tensor, gamma: float) -> Tensor:
    """Return S_t = r_t + gamma * S_t-1, [T, B], without S_t-1 where step t - 1 ended an episode.

    Args:
        reward: Of each step, [T, B].
        continues: Whether the episode continues after each step, [T, B].
        earlier: S of the step before the first one, 0 where an episode starts, [B].
        gamma: Discount of one step.
    """
    first = reward[:1] + gamma * earlier
    carried = gamma * torch.cat((torch.zeros_like(continues[:1]), continues[:-1]))
    return backwards(torch.cat((first, reward[1:])).flip(0), carried.flip(0)).flip(0)


class StandardizedTorso(nn.Module):
    """A torso without parameters and the standardization behind it: observations [B, ...] -> features [B, outputs]."""

    def __init__(self, torso: nn.Module) -> None:
        super().__init__()
        self.torso = torso
        self.outputs = int(torso.outputs)  # type: ignore[arg-type]  # every torso has it
        self.standardization = Standardization(self.outputs)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the standardized features, float32."""
        features: Tensor = self.standardization(self.torso(observation).float())
        return features
