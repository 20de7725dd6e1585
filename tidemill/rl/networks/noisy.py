"""Linear layers that explore by themselves (Fortunato et al. 2018, NoisyNet, factorised noise)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """y = (w + sigma_w * f(e_out) f(e_in)^T) x + b + sigma_b * f(e_out), with f(e) = sign(e) sqrt(|e|) and e ~ N(0, 1).

    At first and after `disable_noise` it is the linear layer of w and b: [..., inputs] -> [..., outputs].
    """

    def __init__(self, inputs: int, outputs: int, rng: torch.Generator, std: float = 0.5) -> None:
        """Make the layer; its noise starts with `std` / sqrt(inputs) (ibid., section 3.2, where it is 0.5)."""
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=rng))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=rng))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), std * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), std * bound))
        self._noise: tuple[Tensor, Tensor] | None = None

    def draw(self, rng: torch.Generator, rows: int = 0) -> None:
        """Draw noise for the next passes: one for all items of a batch, or with `rows` one for each of its items."""
        lead = (rows,) if rows else ()
        self._take(torch.randn((*lead, sum(self.weight.shape)), generator=rng, device=self.weight.device))

    def draw_rows(self, sources: Sequence[tuple[torch.Generator, int]]) -> None:
        """Draw noise for each item of a batch, for so many of them from each generator in turn."""
        size, device = sum(self.weight.shape), self.weight.device
        self._take(torch.cat([torch.randn((rows, size), generator=rng, device=device) for rng, rows in sources]))

    def _take(self, raw: Tensor) -> None:
        inputs = self.weight.shape[1]
        scaled = (raw.sign() * raw.abs().sqrt()).to(self.weight.dtype)
        self._noise = (scaled[..., :inputs], scaled[..., inputs:])

    def disable_noise(self) -> None:
        """Pass without noise from now on."""
        self._noise = None

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs]."""
        if self._noise is None:
            return functional.linear(x, self.weight, self.bias)
        noise_in, noise_out = self._noise
        if noise_in.ndim == 1:  # one weight for the whole batch
            weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(noise_out, noise_in))
            return functional.linear(x, weight, torch.addcmul(self.bias, self.bias_sigma, noise_out))
        # a weight for each item would be large, so each factor of its noise goes to its own side
        y = functional.linear(x, self.weight, self.bias)
        if x.ndim == 3:  # [B, K, inputs], and noise for each of B
            noise_in, noise_out = noise_in[:, None], noise_out[:, None]
        return y + noise_out * functional.linear(x * noise_in, self.weight_sigma, self.bias_sigma)


def reset_noise(network: nn.Module, rng: torch.Generator, rows: int = 0) -> None:
    """Draw noise in every noisy layer of a network; see `NoisyLinear.draw`."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw(rng, rows)


def reset_noise_rows(network: nn.Module, sources: Sequence[tuple[torch.Generator, int]]) -> None:
    """Draw noise in every noisy layer of a network; see `NoisyLinear.draw_rows`."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw_rows(sources)


def disable_noise(network: nn.Module) -> None:
    """End the noise in every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.disable_noise()
