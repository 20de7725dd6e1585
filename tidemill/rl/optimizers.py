"""Optimizers with plain tensors as state: Adam, centered RMSProp, gradient clipping and learning-rate decay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tidemill.errors import InvalidArgument
from tidemill.logger import LateLogger
from tidemill.rl.exploration import linear
from tidemill.rl.process_group import SINGLE_PROCESS, ProcessGroup

_DECAY_SETTING = "agent.learning_rate_decay_updates"

_log = LateLogger()


def trained_parameters(network: nn.Module) -> list[Tensor]:
    """Return the parameters of a network that learn: all but those frozen by `requires_grad_(False)`."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def global_norm(gradients: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, []."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clip_(gradients: tuple[Tensor, ...] | list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients in place to a common norm of `max_norm` at most, 0 for no bound; return the norm before, []."""
    norm = global_norm(gradients)
    if max_norm:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def laid_as(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, each in the order of its parameter in memory; one that is in that order is not copied.

    A fused step needs that order, and ranks that add up flat tensors must agree on one.
    """
    return [_laid_as(*both) for both in zip(parameters, gradients, strict=True)]


def _laid_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    if parameter.is_contiguous():
        return gradient.contiguous()
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


def averaged_gradients(
    loss: Tensor, parameters: Sequence[Tensor], group: ProcessGroup = SINGLE_PROCESS, also: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Return the gradients of `loss`, float32 [], averaged over the group; leaves no `grad` anywhere.

    Args:
        loss: Of this rank's part of the batch.
        parameters: What it is differentiated by; the gradient of one that it does not depend on is zero.
        group: The ranks.
        also: Tensors to average in the same message.

    Returns:
        The gradients of `parameters`, in their order, and then `also`, as averaged.
    """
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return group.mean([*laid_as(parameters, gradients), *also])


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
        self.learning_rate: float | Tensor = learning_rate
        """Step size of the next steps; a schedule may change it at any time."""
        self._betas = betas
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        self._mean = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._square = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._steps = torch.zeros((), device=self.parameters[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step; `gradients` are those of `parameters`, in their order."""
        self._steps += 1
        torch._fused_adam_(
            self.parameters,
            laid_as(self.parameters, gradients),
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

    def minimize(self, loss: Tensor, group: ProcessGroup = SINGLE_PROCESS, also: Sequence[Tensor] = ()) -> list[Tensor]:
        """Take one step down the gradient of `loss`, float32 []; return its `averaged_gradients`."""
        averaged = averaged_gradients(loss, self.parameters, group, also)
        self.step(averaged[: len(self.parameters)])
        return averaged

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of each parameter, by its position, and the number of steps."""
        return _by_position(mean=self._mean, square=self._square) | {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises InvalidArgument if the parameters were others."""
        _load(state, mean=self._mean, square=self._square)
        self._steps.copy_(state["steps"])


class RMSProp:
    """Divides each gradient by an estimate of its standard deviation; used as `tidemill.rl.optimizers.Adam` is.

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
        self.learning_rate: float | Tensor = learning_rate
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
        if isinstance(self.learning_rate, Tensor):
            step = torch._foreach_div(gradient, variance)
            torch._foreach_mul_(step, self.learning_rate)
            torch._foreach_sub_(self.parameters, step)
        else:
            torch._foreach_addcdiv_(self.parameters, gradient, variance, value=-self.learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return both averages of each parameter, by its position."""
        return _by_position(mean=self._mean, square=self._square)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises InvalidArgument if the parameters were others."""
        _load(state, mean=self._mean, square=self._square)


def _by_position(**moments: list[Tensor]) -> dict[str, Any]:
    return {name: {str(i): tensor for i, tensor in enumerate(tensors)} for name, tensors in moments.items()}


@torch.no_grad()
def _load(state: Mapping[str, Any], **moments: list[Tensor]) -> None:
    for name, tensors in moments.items():
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


class Optimizer(Protocol):
    """Moves parameters down a gradient."""

    parameters: list[Tensor]
    learning_rate: float | Tensor
    """A number, or, for an update that is recorded, float32 [] on the parameters' device."""

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step; `gradients` are those of `parameters`, in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises InvalidArgument if the parameters were others."""


def fallen(settings: object, update: int) -> str:
    """Return in words that a rate or clip has fallen to 0 by an update, and what to do; empty if none has.

    Args:
        settings: Of an agent, which may or may not know a decay.
        update: How many others came before.
    """
    said = []
    updates = getattr(settings, "learning_rate_decay_updates", 0)
    if 0 < updates <= update and getattr(settings, "learning_rate_final", 0.0) <= 0:
        what = f"the learning rate is 0 since update {updates:,}"
        said.append(f"{what}: nothing is learned unless {_DECAY_SETTING} is raised")
    updates = getattr(settings, "clip_decay_updates", 0)
    if 0 < updates <= update:
        setting = "agent.clip_decay_updates"
        said.append(f"the clip is 0 since update {updates:,}: next to nothing is learned unless {setting} is raised")
    return "; ".join(said)


class LearningRateDecay:
    """Lets the step size of each optimizer fall linearly from where it is."""

    def __init__(
        self, optimizers: Iterable[Optimizer], updates: int, final: float = 0.0, *, on_device: bool = False
    ) -> None:
        """Note the step sizes.

        Args:
            optimizers: Whose step sizes fall; they are numbers still.
            updates: After how many the step sizes are `final`; 0 never changes them.
            final: Where they end.
            on_device: Whether step sizes that change lie where the parameters are, for updates that are recorded.
        """
        self._initial = [(optimizer, float(optimizer.learning_rate)) for optimizer in optimizers]
        if on_device and updates:
            for optimizer, initial in self._initial:
                optimizer.learning_rate = torch.tensor(initial, device=optimizer.parameters[0].device)
        self._updates, self._final = updates, final
        self._said = False

    def at(self, update: int) -> None:
        """Set the step sizes for the update that `update` others came before."""
        if self._updates:
            for optimizer, initial in self._initial:
                rate = linear(update, initial, self._final, self._updates)
                if isinstance(optimizer.learning_rate, Tensor):
                    optimizer.learning_rate.fill_(rate)
                else:
                    optimizer.learning_rate = rate
            if update >= self._updates and self._final == 0 and not self._said:
                self._said = True
                _log.warning(
                    f"the learning rate is 0, so training has no effect from now on; raise {_DECAY_SETTING}",
                    update=update,
                )
