"""Centered RMSProp (Graves 2013, eq. 38 to 41, without momentum), the optimizer of Ape-X."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tidemill.errors import InvalidArgument


class RMSProp:
    """Divides each gradient by an estimate of its standard deviation; used as `tidemill.rl.adam.Adam` is.

    `epsilon` stands under the root, as in Graves and in TensorFlow, where Ape-X took its value from; torch's own
    adds it outside.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        decay: float = 0.95,
        epsilon: float = 1.5e-7,
        weight_decay: float = 0.0,
    ) -> None:
        """Take float32 parameters, all on one device."""
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        """Step size of the next steps; a schedule may change it at any time."""
        self._decay, self._epsilon, self._weight_decay = decay, epsilon, weight_decay
        self._mean = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._square = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step; `gradients` are those of `parameters`, in their order."""
        gradient = list(gradients)
        if self._weight_decay:
            gradient = list(torch._foreach_add(gradient, self.parameters, alpha=self._weight_decay))
        torch._foreach_lerp_(self._mean, gradient, 1.0 - self._decay)
        torch._foreach_lerp_(self._square, torch._foreach_mul(gradient, gradient), 1.0 - self._decay)
        variance = torch._foreach_addcmul(self._square, self._mean, self._mean, value=-1.0)
        torch._foreach_clamp_min_(variance, 0.0)  # rounding may leave less
        torch._foreach_add_(variance, self._epsilon)
        torch._foreach_sqrt_(variance)
        torch._foreach_addcdiv_(self.parameters, gradient, variance, value=-self.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return both averages of each parameter, by its position."""
        return {
            "mean": {str(i): tensor for i, tensor in enumerate(self._mean)},
            "square": {str(i): tensor for i, tensor in enumerate(self._square)},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; raises InvalidArgument if the parameters were others."""
        for name, tensors in (("mean", self._mean), ("square", self._square)):
            stored = [state[name][str(i)] for i in range(len(state[name]))]
            if [tuple(tensor.shape) for tensor in stored] != [tuple(tensor.shape) for tensor in tensors]:
                raise InvalidArgument(f"optimizer's {name} is of other parameters than the network's")
            torch._foreach_copy_(tensors, stored)
