"""The head of a Q-network, from features to the value of every action: plain or dueling, with or without noise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.layers.noisy import NoisyLinear, noisy_parameters_together
from tidemill.rl.networks.precision import in_float32

Layer = Callable[[int, int, torch.Generator], nn.Module]


class Stream(nn.Module):
    """One hidden layer and a linear one: [..., inputs] -> float32 [..., outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int, layer: Layer, rng: torch.Generator) -> None:
        super().__init__()
        self.hidden = layer(inputs, hidden, rng)
        self.output = layer(hidden, outputs, rng)

    def forward(self, features: Tensor) -> Tensor:
        """Return [..., outputs], float32 whatever the hidden layer computes in."""
        return in_float32(self.output, torch.relu(self.hidden(features)))


class QHead(nn.Module):
    """Features [..., F] -> K numbers for each action, [..., A, K].

    A dueling head has a stream for the state and one for the actions: V + A - mean(A) (Wang et al. 2016, eq. 9).
    The last hidden layer belongs to the streams, the others are shared.
    """

    def __init__(
        self,
        inputs: int,
        hidden_sizes: tuple[int, ...],
        num_actions: int,
        values: int,
        rng: torch.Generator,
        *,
        dueling: bool,
        noise_std: float,
    ) -> None:
        """Make the layers.

        Args:
            inputs: F.
            hidden_sizes: Units of each hidden layer, at least one.
            num_actions: A.
            values: K: 1 for plain values, or the atoms or quantiles of a distribution.
            rng: Draws the initial parameters.
            dueling: Whether there are two streams.
            noise_std: What the noise of every layer starts with, as `NoisyLinear` takes it; 0 makes quiet layers.
        """
        super().__init__()
        layer: Layer = partial(NoisyLinear, std=noise_std) if noise_std else linear
        self._is_noisy = noise_std > 0
        self._shape = (num_actions, values)
        widths = (inputs, *hidden_sizes[:-1])
        self.shared = nn.ModuleList(layer(a, b, rng) for a, b in pairwise(widths))
        self.state = Stream(widths[-1], hidden_sizes[-1], values, layer, rng) if dueling else None
        self.action = Stream(widths[-1], hidden_sizes[-1], num_actions * values, layer, rng)

    def forward(self, features: Tensor) -> Tensor:
        """Return [..., A, K], float32."""
        with noisy_parameters_together(self) if self._is_noisy else nullcontext():
            return self._values(features)

    def _values(self, x: Tensor) -> Tensor:
        for layer in self.shared:
            x = torch.relu(layer(x))
        q: Tensor = self.action(x).unflatten(-1, self._shape)
        if self.state is None:
            return q
        state: Tensor = self.state(x)
        return state[..., None, :] + q - q.mean(dim=-2, keepdim=True)

    def hidden_layers(self) -> list[nn.Module]:
        """Return every layer but the last: those whose number format may be a short one."""
        streams = [self.action] if self.state is None else [self.action, self.state]
        return [*self.shared, *(stream.hidden for stream in streams)]
