"""A network of vectors behind a torso, for algorithms whose networks are fully connected otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from tidemill.rl.networks.torso import build_torso
from tidemill.rl.networks.torsos import NetworkSetting
from tidemill.types import EnvSpec


class TorsoSettings(Protocol):
    """The settings of an agent whose networks begin with a torso."""

    @property
    def network(self) -> str:
        """Name of the torso."""

    @property
    def network_settings(self) -> Mapping[str, NetworkSetting]:
        """Its settings, by name."""


class BehindTorso(nn.Module):
    """Observations [B, ...], and what else the network behind takes, such as actions -> what that returns."""

    def __init__(self, torso: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.torso, self.network = torso, network

    def forward(self, observation: Tensor, *rest: Tensor) -> Tensor:
        """Return what the network makes of the features, float32 [B, outputs], and of the rest."""
        output: Tensor = self.network(self.torso(observation).float(), *rest)
        return output


def behind_torso(
    settings: TorsoSettings, env_spec: EnvSpec, rng: torch.Generator, build: Callable[[int], nn.Module]
) -> nn.Module:
    """Return the network that `build` makes of the number of its inputs, behind the torso that is asked for.

    The torso `mlp` only lays an observation's numbers side by side, which networks of vectors do themselves.
    """
    if settings.network == "mlp" and not env_spec.observation_parts:
        return build(env_spec.observation_size)
    torso = build_torso(settings.network, env_spec, rng, settings.network_settings)
    return BehindTorso(torso, build(int(torso.outputs)))  # type: ignore[arg-type]  # every torso has it
