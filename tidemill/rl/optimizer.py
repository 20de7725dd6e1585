"""What agents ask of an optimizer, and which there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from tidemill.rl.adam import Adam
from tidemill.rl.rmsprop import RMSProp


class Optimizer(Protocol):
    """Moves parameters down a gradient."""

    parameters: list[Tensor]
    learning_rate: float

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step; `gradients` are those of `parameters`, in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; raises InvalidArgument if the parameters were others."""


class OptimizerSettings(Protocol):
    """The settings of an agent that offers the choice."""

    @property
    def optimizer(self) -> str:
        """`adam` or `rmsprop`."""

    @property
    def learning_rate(self) -> float:
        """Step size."""

    @property
    def optimizer_epsilon(self) -> float:
        """Keeps the denominator from 0."""

    @property
    def rmsprop_decay(self) -> float:
        """Share of the old in RMSProp's averages."""

    @property
    def weight_decay(self) -> float:
        """L2 penalty per unit of weight."""


def build_optimizer(settings: OptimizerSettings, parameters: Iterable[Tensor]) -> Optimizer:
    """Return the optimizer that the settings ask for."""
    rate, epsilon, decay = settings.learning_rate, settings.optimizer_epsilon, settings.weight_decay
    if settings.optimizer == "rmsprop":
        return RMSProp(parameters, rate, settings.rmsprop_decay, epsilon, decay)
    return Adam(parameters, rate, epsilon=epsilon, weight_decay=decay)
