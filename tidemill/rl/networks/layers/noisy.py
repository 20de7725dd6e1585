"""Linear layers that explore by themselves (Fortunato et al. 2018, NoisyNet, factorised noise)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
        self._fixed: tuple[Tensor, Tensor] | None = None

    def take(self, scaled: Tensor) -> None:
        """Pass with f(e) from now on: [inputs + outputs], or with a row for each item of a batch."""
        inputs = self.weight.shape[1]
        scaled = scaled.to(self.weight.dtype)
        self._noise = (scaled[..., :inputs], scaled[..., inputs:])

    def disable_noise(self) -> None:
        """Pass without noise from now on."""
        self._noise = None

    @property
    def shared_noise(self) -> tuple[Tensor, Tensor] | None:
        """f(e_in) and f(e_out), if they are one for all items of a batch."""
        return self._noise if self._noise is not None and self._noise[0].ndim == 1 else None

    def fix(self, parameters: tuple[Tensor, Tensor] | None) -> None:
        """Pass by this weight and this bias; None ends that."""
        self._fixed = parameters

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs]."""
        if self._fixed is not None:
            return functional.linear(x, *self._fixed)
        if self._noise is None:
            return functional.linear(x, self.weight, self.bias)
        if self.shared_noise is not None:
            return functional.linear(x, *_noisy_parameters([self])[0])
        noise_in, noise_out = self._noise
        # a weight for each item would be large, so each factor of its noise goes to its own side
        y = functional.linear(x, self.weight, self.bias)
        if x.ndim == 3:  # [B, K, inputs], and noise for each of B
            noise_in, noise_out = noise_in[:, None], noise_out[:, None]
        return y + noise_out * functional.linear(x * noise_in, self.weight_sigma, self.bias_sigma)


@contextmanager
def noisy_parameters_together(network: nn.Module) -> Iterator[None]:
    """Make the parameters of all layers whose noise is one for the batch before they pass, by a few kernels."""
    every = [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
    layers = [layer for layer in every if layer.shared_noise is not None]
    for layer, parameters in zip(layers, _noisy_parameters(layers), strict=True):
        layer.fix(parameters)
    try:
        yield
    finally:
        for layer in layers:
            layer.fix(None)


def _noisy_parameters(layers: Sequence[NoisyLinear]) -> list[tuple[Tensor, Tensor]]:
    """Return the weight and the bias of each layer with the noise that it has for the whole batch."""
    if not layers:
        return []
    noise = [layer.shared_noise for layer in layers]
    factors = [(torch.outer(outward, inward), outward) for inward, outward in filter(None, noise)]
    made = _WithNoise.apply(  # type: ignore[no-untyped-call]  # torch's
        *(mean for layer in layers for mean in (layer.weight, layer.bias)),
        *(sigma for layer in layers for sigma in (layer.weight_sigma, layer.bias_sigma)),
        *(factor for pair in factors for factor in pair),
    )
    return list(zip(made[::2], made[1::2], strict=True))


class _WithNoise(torch.autograd.Function):
    """Means, sigmas and noise, N tensors each -> mean + sigma * noise, by one kernel for all; so its gradient."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401 - torch's
        """Return N tensors."""
        count = len(tensors) // 3
        means, sigmas, noise = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        ctx.save_for_backward(*noise)
        return tuple(torch._foreach_addcmul(list(means), list(sigmas), list(noise)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        """Return the gradients of means and sigmas."""
        noise: tuple[Tensor, ...] = ctx.saved_tensors
        of_sigmas = torch._foreach_mul(list(gradients), list(noise))
        return (*gradients, *of_sigmas, *(None for _ in noise))


def reset_noise(network: nn.Module, rng: torch.Generator, rows: int = 0) -> None:
    """Draw noise for the next passes: one for all items of a batch, or with `rows` one for each of its items."""
    for layer, noise in _drawn(network, [(rng, max(rows, 1))]):
        layer.take(noise if rows else noise.squeeze(0))


def reset_noise_rows(network: nn.Module, sources: Sequence[tuple[torch.Generator, int]]) -> None:
    """Draw noise for each item of a batch, for so many of them from each generator in turn."""
    for layer, noise in _drawn(network, sources):
        layer.take(noise)


def _drawn(network: nn.Module, sources: Sequence[tuple[torch.Generator, int]]) -> Iterator[tuple[NoisyLinear, Tensor]]:
    """Yield every noisy layer with f(e), [rows of all sources, inputs + outputs], scaled for all layers together."""
    layers = [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
    if not layers:
        return
    count = sum(rows for _, rows in sources)
    sizes = [count * sum(layer.weight.shape) for layer in layers]
    raw = torch.empty(sum(sizes), device=layers[0].weight.device)
    for part in raw.split(sizes):
        of_source = part.view(count, -1).split([rows for _, rows in sources])
        for rows_of_source, (rng, _) in zip(of_source, sources, strict=True):
            rows_of_source.normal_(generator=rng)
    scaled = torch.copysign(raw.abs().sqrt(), raw)
    for layer, part in zip(layers, scaled.split(sizes), strict=True):
        yield layer, part.view(count, -1)


def disable_noise(network: nn.Module) -> None:
    """End the noise in every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.disable_noise()
