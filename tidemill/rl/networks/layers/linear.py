"""Linear layers, how their parameters start, and the vectors they take."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

_POWER_ITERATIONS = 15  # as torch's spectral_norm begins with; each pass in training takes one more

_onednn: Any = torch.ops.mkldnn


def initialise_linear(weight: Tensor, bias: Tensor, fan_in: int, rng: torch.Generator) -> None:
    """Fill a linear layer as `torch.nn.Linear` does, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from `rng`."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        weight.uniform_(-bound, bound, generator=rng)
        bias.uniform_(-bound, bound, generator=rng)


class Linear(nn.Linear):
    """torch's layer, which can keep its weight in the order of oneDNN's products besides.

    Torch brings a bfloat16 weight into that order at every pass; for 3,136 x 512 numbers and 16 images that takes as
    long as the product.
    """

    _packed: Tensor | None = None

    def pack(self, rows: int) -> None:
        """Prepare for passing batches of about `rows` forward, without gradients, with the parameters of now or loaded.

        On other devices, in other formats, and where torch lacks these operations, which it counts as its own affair,
        this does nothing.
        """
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.bfloat16:
            return
        try:
            self._packed = _onednn._reorder_linear_weight(self.weight.detach(), rows)
            self._rows = rows
            self(self.weight.new_zeros((rows, self.in_features)))
        except (AttributeError, RuntimeError):
            self._packed = None

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, outputs]."""
        if self._packed is None:
            return super().forward(x)
        y: Tensor = _onednn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y

    def _load_from_state_dict(self, *arguments: Any) -> None:  # noqa: ANN401  # torch's own seven
        super()._load_from_state_dict(*arguments)
        if self._packed is not None:
            self.pack(self._rows)


def linear(inputs: int, outputs: int, rng: torch.Generator) -> Linear:
    """Return a linear layer whose parameters come from `rng`, on the CPU."""
    layer = Linear(inputs, outputs)
    initialise_linear(layer.weight, layer.bias, inputs, rng)
    return layer


def flat(observation: Tensor) -> Tensor:
    """Return observations [B, ...] as float32 [B, O]; bytes of images become 0 .. 1."""
    vector = observation.flatten(1).float()
    return vector / 255.0 if observation.dtype == torch.uint8 else vector


@torch.no_grad()
def xavier_uniform(network: nn.Module, rng: torch.Generator) -> None:
    """Redraw the weights of convolutions and linear layers, uniform with variance 2 / (in + out), unless frozen."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and all(each.requires_grad for each in layer.parameters()):
            if is_parametrized(layer, "weight"):
                # the weight of a spectrally normalised layer is computed from another and its singular vectors
                module: Any = layer
                weight = module.parametrizations.weight
                nn.init.xavier_uniform_(weight.original, generator=rng)
                for _ in range(_POWER_ITERATIONS):
                    weight()
            else:
                nn.init.xavier_uniform_(layer.weight, generator=rng)
