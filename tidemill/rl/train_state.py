"""The whole state of training an agent, by name: networks, optimizers, random generator and the count of updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tidemill.rl.optimizers import Optimizer
from tidemill.rl.process_group import SINGLE_PROCESS, ProcessGroup

MEASURE_PERIOD = 50
"""Updates from one that is measured to the next; metrics are read about once per second."""


def subdict(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of one network of those that `TrainState.copy_of` returned."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def copied(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of a network's parameters and buffers; float32 buffers as float64.

    Actors get float32 rounded to float16, which a mean of large numbers with a small deviation does not bear.
    """
    exact = {name for name, buffer in network.named_buffers(remove_duplicate=False) if buffer.dtype == torch.float32}
    return {
        name: value.detach().to(torch.float64 if name in exact else value.dtype, copy=True)
        for name, value in network.state_dict().items()
    }


@dataclass
class TrainState:
    """Networks, optimizers and random generator of an agent, and the updates it has made."""

    networks: Mapping[str, nn.Module]
    """By name, e.g. `actor`, the one that acts first; their parameters are in the state under it."""
    optimizers: Mapping[str, Optimizer]
    """By name, e.g. `actor_optimizer`."""
    noise: torch.Generator | None = None
    """Draws what updates need; None if they draw nothing."""
    updates: int = 0
    """Updates so far."""
    group: ProcessGroup = SINGLE_PROCESS
    """The processes that make each update together."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What else updates change, by name; one that a stored state lacks stays as it is."""

    @property
    def is_measured(self) -> bool:
        """Whether the update that is made next also reports what would cost too much at each: norms of gradients."""
        return self.updates % MEASURE_PERIOD == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of everything; its tensors are the networks' and optimizers' own."""
        state: dict[str, Any] = {name: dict(network.state_dict()) for name, network in self.networks.items()}
        state |= {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        state["updates"] = self.updates
        if self.noise is not None:
            state["noise"] = self.noise.get_state()
        return state | dict(self.tensors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called.

        If that was on another kind of device, where a generator has no such state, the seed and the count of updates
        decide what is drawn from here on.
        """
        for name, network in self.networks.items():
            network.load_state_dict(state[name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[name])
        self.updates = int(state["updates"])
        if self.noise is not None:
            self._load_noise(self.noise, state["noise"].cpu())
        for name, tensor in self.tensors.items():
            tensor.copy_(state.get(name, tensor))

    def _load_noise(self, noise: torch.Generator, stored: Tensor) -> None:
        if noise.get_state().numel() == stored.numel():
            noise.set_state(stored)
            return
        words = np.random.SeedSequence([noise.initial_seed(), self.updates]).generate_state(1, np.uint64)
        noise.manual_seed(int(words[0] >> 1))

    def copy_of(self, *names: str) -> dict[str, Tensor]:
        """Return copies of some networks' parameters, as NAME.PARAMETER: what actors are sent."""
        return {f"{name}.{key}": value for name in names for key, value in copied(self.networks[name]).items()}


class TrainedAgent:
    """Base of an agent that keeps everything in a `TrainState`: all of `Agent` but its batches and its updates."""

    _state: TrainState

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the parameters of the network that acts."""
        acting = next(iter(self._state.networks.values()))
        return copied(acting)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizers, random generator and counters; see `Agent.state_dict`."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)
