"""Adam (Kingma & Ba 2015) with little besides its one fused kernel.

On small networks `torch.optim.Adam.step` spends more time around the kernel than in it: it counts the steps
of each parameter apart. Here all parameters share one counter, and the state is plain tensors to store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tidemill.errors import InvalidArgument
from tidemill.rl.ranks import ALONE, Ranks


class Adam:
    """Adam with an L2 penalty and without any other option."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Take float32 parameters, all on one device."""
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        """Step size of the next steps; a schedule may change it at any time."""
        self._betas = betas
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        # `preserve_format` would keep strides; contiguous states are right for contiguous parameters
        self._mean = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._square = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._steps = torch.zeros((), device=self.parameters[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step; `gradients` are those of `parameters`, in their order."""
        self._steps += 1
        torch._fused_adam_(
            self.parameters,
            # the kernel goes by place in memory, and of images with colours last gradients come in another order
            [gradient.contiguous() for gradient in gradients],
            self._mean,
            self._square,
            [],
            [self._steps] * len(self.parameters),
            lr=self.learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def minimize(self, loss: Tensor, ranks: Ranks = ALONE) -> None:
        """Take one step down the gradient of `loss`, float32 [], meaned over ranks; leaves no `grad` anywhere."""
        self.step(ranks.mean(torch.autograd.grad(loss, self.parameters)))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of each parameter, by its position, and the number of steps."""
        return {
            "mean": {str(i): tensor for i, tensor in enumerate(self._mean)},
            "square": {str(i): tensor for i, tensor in enumerate(self._square)},
            "steps": self._steps,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; raises InvalidArgument if the parameters were others."""
        for name, tensors in (("mean", self._mean), ("square", self._square)):
            if len(state[name]) != len(tensors):
                raise InvalidArgument(f"optimizer has {len(state[name])} parameters, expected {len(tensors)}")
            for i, tensor in enumerate(tensors):
                stored = state[name][str(i)]
                if stored.shape != tensor.shape:
                    raise InvalidArgument(
                        f"optimizer's {name} of parameter {i} has shape {tuple(stored.shape)}, "
                        f"expected {tuple(tensor.shape)}"
                    )
                tensor.copy_(stored)
        self._steps.copy_(state["steps"])
