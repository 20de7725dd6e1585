"""Networks of deterministic policy gradients: an actor that ends in tanh, and a critic that takes actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from tidemill.rl.networks.layers.linear import flat, linear
from tidemill.rl.networks.recurrent import Seen, needed_torso
from tidemill.rl.settings.base import NormalizingSettings
from tidemill.types import EnvSpec


class BehindTorso(nn.Module):
    """Observations [B, ...], and what else the network behind takes, such as actions -> what that returns."""

    def __init__(self, torso: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.torso, self.network = torso, network

    def forward(self, observation: Seen, *rest: Tensor) -> Tensor:
        """Return the network's output for the features and the other inputs, float32 [B, outputs]."""
        return self.behind(self.torso(observation).float(), *rest)

    def behind(self, features: Tensor, *rest: Tensor) -> Tensor:
        """Return the network's output for the torso's features, [B, F], and the other inputs."""
        output: Tensor = self.network(features, *rest)
        return output


def behind_torso(
    settings: NormalizingSettings,
    env_spec: EnvSpec,
    rng: torch.Generator,
    build: Callable[[int], nn.Module],
    lstm_size: int = 0,
    *,
    starts_empty: bool = False,
) -> nn.Module:
    """Return the network that `build` makes of the number of its inputs, behind the torso if it needs one.

    For `lstm_size` and `starts_empty` see `needed_torso`.
    """
    torso = needed_torso(settings, env_spec, rng, lstm_size, starts_empty=starts_empty)
    if torso is None:
        return build(env_spec.observation_size)
    return BehindTorso(torso, build(int(torso.outputs)))  # type: ignore[arg-type]  # every torso has it


ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class DeterministicActor(nn.Module):
    """Observations [B, ...] of O numbers -> actions [B, A] in (-1, 1)."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        action_size: int,
        rng: torch.Generator,
        *,
        activation: str = "relu",
        last_bound: float = 0.0,
    ) -> None:
        """Make the layers.

        Args:
            inputs: Numbers of an observation.
            hidden_sizes: Units of each hidden layer.
            action_size: Numbers of an action.
            rng: Draws the parameters.
            activation: `relu` or `tanh`, after each hidden layer.
            last_bound: The last layer's parameters start uniformly within it, so that first actions are near 0
                and tanh is steep; 0 starts them like those of any other layer.
        """
        super().__init__()
        widths = (inputs, *hidden_sizes)
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.head = linear(widths[-1], action_size, rng)
        self._activation = ACTIVATIONS[activation]
        shrink_last(self.head, last_bound, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions [B, A] of observations of any dtype, see `flat`."""
        x = flat(observation)
        for layer in self.hidden:
            x = self._activation(layer(x))
        return torch.tanh(self.head(x))


class ActionCritic(nn.Module):
    """Observations [B, ...] of O numbers and actions [B, A] -> [B, outputs]; ReLU in between.

    The action enters beside the observation or, later, beside what a hidden layer made of it.
    """

    def __init__(
        self,
        inputs: int,
        action_size: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        rng: torch.Generator,
        *,
        action_layer: int = 0,
        last_bound: float = 0.0,
    ) -> None:
        """Make the layers.

        Args:
            inputs: Numbers of an observation.
            action_size: Numbers of an action.
            hidden_sizes: Units of each hidden layer.
            outputs: 1 for a value, or the atoms of a distribution.
            rng: Draws the parameters.
            action_layer: Number of the hidden layer that takes the action; 0 is the first.
            last_bound: See `DeterministicActor`.
        """
        super().__init__()
        assert 0 <= action_layer <= len(hidden_sizes), f"action_layer {action_layer} of {len(hidden_sizes)} layers"
        widths = [inputs, *hidden_sizes]
        joined = [width + action_size * (i == action_layer) for i, width in enumerate(widths)]
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in zip(joined, hidden_sizes, strict=False))
        self.head = linear(joined[-1], outputs, rng)
        self._action_layer = action_layer
        shrink_last(self.head, last_bound, rng)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return [B, outputs]."""
        x = flat(observation)
        for number, layer in enumerate(self.hidden):
            x = torch.relu(layer(self._join(x, action, number)))
        value: Tensor = self.head(self._join(x, action, len(self.hidden)))
        return value

    def _join(self, x: Tensor, action: Tensor, number: int) -> Tensor:
        return torch.cat((x, action), dim=-1) if number == self._action_layer else x


def shrink_last(layer: nn.Linear, bound: float, rng: torch.Generator) -> None:
    """Redraw a layer's parameters uniformly within `bound`; 0 leaves them (Lillicrap et al. 2016, section 7)."""
    if bound:
        with torch.no_grad():
            layer.weight.uniform_(-bound, bound, generator=rng)
            layer.bias.uniform_(-bound, bound, generator=rng)
