"""A trained policy in evaluation as one module from observations to actions, in a form that ONNX can hold."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class EvaluationNetwork(nn.Module):
    """A network, and how its output becomes the action that is thought best.

    It depends on nothing but the newest observation, and on no chance.
    """

    def __init__(self, network: nn.Module, choose: Callable[[nn.Module, Tensor], Tensor]) -> None:
        """Put them together.

        Args:
            network: With the parameters to act by; it is not copied.
            choose: From the network and observations [N, ...] to actions [N] or [N, *action_shape].
        """
        super().__init__()
        self.network = network
        self._choose = choose

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions, int64 [N] or float32 [N, *action_shape]."""
        return self._choose(self.network, observation)
