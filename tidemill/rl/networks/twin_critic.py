"""Two critics as one module: every matrix product is batched over a leading axis of 2."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.mlp import initialise_linear

TWINS = 2


class TwinCritic(nn.Module):
    """Observations [B, O] and actions [B, A] -> the values of both critics [2, B].

    Each hidden layer is linear, optionally a layer norm with its own scale and shift per critic (Ball et
    al. 2023, section 4.2), and a ReLU.
    """

    def __init__(self, inputs: int, hidden_sizes: tuple[int, ...], layer_norm: bool, rng: torch.Generator) -> None:
        super().__init__()
        widths = (inputs, *hidden_sizes)
        self.weights = nn.ParameterList()  # each [2, in, out]
        self.biases = nn.ParameterList()  # each [2, 1, out]
        for a, b in pairwise(widths):
            weight, bias = torch.empty(TWINS, a, b), torch.empty(TWINS, 1, b)
            initialise_linear(weight, bias, a, rng)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))
        norms = hidden_sizes if layer_norm else ()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(TWINS, 1, width)) for width in norms)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(TWINS, 1, width)) for width in norms)
        # a product with one column is slow as a matrix product, so the output is a weighted sum
        self.output_weight = nn.Parameter(torch.empty(TWINS, 1, widths[-1]))
        self.output_bias = nn.Parameter(torch.empty(TWINS, 1))
        initialise_linear(self.output_weight, self.output_bias, widths[-1], rng)

    def forward(self, observation: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
        """Return values [2, B]; with `frozen`, gradients flow to the inputs alone."""
        x = torch.cat((observation, action), dim=-1).expand(TWINS, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(_held(bias, frozen), x, _held(weight, frozen))
            if len(self.scales):
                x = nn.functional.layer_norm(x, x.shape[-1:])
                x = torch.addcmul(_held(self.shifts[i], frozen), x, _held(self.scales[i], frozen))
            x = torch.relu(x)
        value = (x * _held(self.output_weight, frozen)).sum(dim=-1)
        return value + _held(self.output_bias, frozen)


def _held(parameter: Tensor, frozen: bool) -> Tensor:
    return parameter.detach() if frozen else parameter
