"""Shared by convolutional torsos: images as they come, as channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import initialise_linear
from tidemill.types import EnvSpec


def as_channels(observation: Tensor, env_spec: EnvSpec, dtype: torch.dtype, *, channels_last: bool = False) -> Tensor:
    """Return images as [B, C, H, W], in `dtype`, of observations [B, H, W], [B, stack, H, W, C] or between.

    With `channels_last` they lie [B, H, W, C] in memory; the same pass over memory converts and reorders them.

    Numbers stay as they are: the first convolution is given `pixel_scale`. A byte is exact in bfloat16, which
    holds every integer up to 256. Within autocast its format takes `dtype`'s place: the convolution would ask for it
    anyway, after a pass over memory for each.
    """
    if torch.is_autocast_enabled(observation.device.type):
        dtype = torch.get_autocast_dtype(observation.device.type)
    x = observation
    if len(env_spec.observation_shape) == 3:  # colours last
        x = x.movedim(-1, -3).flatten(1, -3)
    elif env_spec.frame_stack == 1:
        x = x.unsqueeze(1)
    return x.to(dtype, memory_format=torch.channels_last if channels_last else torch.preserve_format)


def blank_images(env_spec: EnvSpec, count: int) -> Tensor:
    """Return black observations of so many environments, uint8 [count, ...]."""
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    return torch.zeros((count, *stack, *env_spec.observation_shape), dtype=torch.uint8)


def pixel_scale(env_spec: EnvSpec) -> float:
    """Return the factor of pixels before a network: bytes are scaled to 0 to 1."""
    return 1.0 / 255.0 if env_spec.observation_dtype == "uint8" else 1.0


class Convolution(nn.Conv2d):
    """A convolution of `scale` times its input.

    The weights are scaled in passing, a few thousand numbers, and not the input, thousands of pixels for each image.
    """

    scale = 1.0
    channels_last = False
    """Whether images lie [B, H, W, C] in memory while they pass."""

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return [B, outputs, H, W]; `weight`, if given, replaces the layer's weight."""
        weight = self.weight if weight is None else weight
        weight = weight if self.scale == 1.0 else weight * self.scale
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        y: Tensor = self._conv_forward(x, weight, self.bias)
        return y


def to_channels_last(network: nn.Module) -> None:
    """Lay images and weights of a network's convolutions channels last in memory, before anything refers to them.

    A weight that lies as the images do needs no copy at a pass, nor does its gradient at a step. One that is computed
    from other parameters stays: `normalised_weights` lays what it computes.
    """
    for layer in network.modules():
        if isinstance(layer, Convolution):
            layer.channels_last = True
            if "weight" in layer._parameters:
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def lies_channels_last(network: nn.Module) -> bool:
    """True if `to_channels_last` was called; the first convolution says it for all."""
    return next((layer.channels_last for layer in network.modules() if isinstance(layer, Convolution)), False)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    rng: torch.Generator,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
    scale: float = 1.0,
) -> Convolution:
    """Return a convolution whose parameters come from `rng`, on the CPU, as torch's own start."""
    layer = Convolution(inputs, outputs, kernel, stride, padding, bias=bias)
    layer.scale = scale
    unused = torch.empty(outputs)
    initialise_linear(layer.weight, unused if layer.bias is None else layer.bias, inputs * kernel * kernel, rng)
    return layer
