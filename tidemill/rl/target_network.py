"""A network that follows another one slowly, to bootstrap from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from tidemill.rl.optimizers import trained_parameters

M = TypeVar("M", bound=nn.Module)


class TargetNetwork(Generic[M]):
    """A copy of a network that is moved after updates, whole now and then or a little each time.

    Buffers, such as running statistics, are its own: its passes in training mode move them.
    """

    def __init__(self, online: M, every: int, tau: float) -> None:
        """Copy a network.

        Args:
            online: The network to follow.
            every: Updates between two copies; 0 moves by `tau` at each update instead.
            tau: Share of the network taken over at each update; only if `every` is 0.
        """
        self.network: M = copy.deepcopy(online)
        self._every, self._tau = every, tau
        # listed once: walking a module's tree costs more than the copy itself
        self._trained = trained_parameters(self.network)
        self._parameters: list[Tensor] = list(self.network.requires_grad_(False).parameters())

    def is_due(self, updates: int) -> bool:
        """True if `update` moves the target after update number `updates` of the online network."""
        return self._every == 0 or updates % self._every == 0

    @torch.no_grad()
    def update(self, online: Sequence[Tensor], updates: int) -> None:
        """Move, if it is time, towards the online network after its update number `updates`.

        Args:
            online: All parameters of the online network, or those of them that learn.
            updates: Of the online network so far.
        """
        parameters = self._parameters if len(online) == len(self._parameters) else self._trained
        if self._every == 0:
            torch._foreach_lerp_(parameters, list(online), self._tau)
        elif self.is_due(updates):
            torch._foreach_copy_(parameters, list(online))
