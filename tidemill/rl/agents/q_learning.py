"""The base of DQN and R2D2: an online network, a target network that follows it, and updates of one loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from tidemill.errors import ConfigError
from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.normalizer import ReplayNormalizer
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.networks.precision import MixedPrecision
from tidemill.rl.optimizers import (
    Adam,
    LearningRateDecay,
    Optimizer,
    RMSProp,
    averaged_gradients,
    clip_,
    trained_parameters,
)
from tidemill.rl.sequences import SequenceShape
from tidemill.rl.settings.q_learning import QLearningSettings
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainedAgent, TrainState
from tidemill.types import EnvSpec

N = TypeVar("N", bound=MixedPrecision)


class QLearningAgent(TrainedAgent, ABC, Generic[N]):
    """Updates a network by the loss of an algorithm, and its target."""

    def __init__(
        self,
        config: QLearningSettings,
        env_spec: EnvSpec,
        device: torch.device,
        online: N,
        noise: torch.Generator | None = None,
        sequences: SequenceShape | None = None,
    ) -> None:
        """Copy the network to its target.

        Args:
            config: Of the algorithm.
            env_spec: Shapes of the environment.
            device: Where the agent computes.
            online: The network that learns, on the device.
            noise: Draws what the loss needs; None if it draws nothing.
            sequences: How the items are divided; None: they are single transitions.
        """
        online.set_update_format(config, env_spec, device)
        self._online = online
        self._target = TargetNetwork(online, config.target_update_period, config.tau)
        self._optimizer = build_optimizer(config, trained_parameters(online))
        self._max_grad_norm = config.max_grad_norm
        recording = config.compile == "cuda-graphs"
        decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates, on_device=recording)
        self._loss = compiled(self._loss_of, config.compile, device)
        networks: dict[str, nn.Module] = {"online": online, "target": self._target.network}
        self._normalizer = ReplayNormalizer(config, networks.values(), sequences).to(device)
        networks |= self._normalizer.modules_by_name
        self._state = TrainState(networks, {"optimizer": self._optimizer}, noise)
        self._run_update = recorded(self._updated, config.compile, device, self._state, decay)

    @abstractmethod
    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the items' new priorities, [B], and the mean value of the actions taken, []."""

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the loss of the values and move the target network if it is time."""
        return self._run_update(batch, weight, self._target.is_due(self._state.updates + 1))

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the online network's parameters, and for initial priorities the scale of rewards."""
        return super().policy_state() | self._normalizer.published()

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        batch = self._normalizer.counted(batch, weight, self._state.group)
        loss, priority, q = self._loss(batch, weight)
        gradients = averaged_gradients(loss, self._optimizer.parameters, self._state.group)
        grad_norm = clip_(gradients, self._max_grad_norm)
        self._optimizer.step(gradients)
        self._target.update(self._optimizer.parameters, self._state.updates + 1)
        return Update(priority, {"loss": loss.detach(), "q": q, "grad_norm": grad_norm})


def build_optimizer(settings: QLearningSettings, parameters: Iterable[Tensor]) -> Optimizer:
    """Return the optimizer that the settings ask for."""
    rate, epsilon, decay = settings.learning_rate, settings.optimizer_epsilon, settings.weight_decay
    if settings.optimizer == "rmsprop":
        return RMSProp(parameters, rate, settings.rmsprop_decay, epsilon, decay)
    return Adam(parameters, rate, epsilon=epsilon, weight_decay=decay)


Compile = Literal["auto", "none", "default", "cuda-graphs"]
"""With `cuda-graphs` torch compiles nothing; see `rl/agents/update_graph.py`. A learner decides what `auto` is."""

Loss = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, ...]]
"""From a batch, always of the same shapes, and importance weights [B] to the loss, [], and what else came of it."""


def compiled(loss: Loss, how: Compile, device: torch.device) -> Loss:
    """Return a loss that is compiled when it is first called if `how` is `default`, or as it is.

    Raises:
        ConfigError: torch cannot compile on this machine.
    """
    if how != "default":
        return loss
    _try_out(device)
    return torch.compile(loss, fullgraph=True, dynamic=False)


def _try_out(device: torch.device) -> None:
    """Compile something small, so that a missing compiler is reported at the start and by the setting's name."""
    try:
        torch.compile(lambda x: x + 1.0)(torch.zeros(1, device=device))
    except Exception as error:  # of the compiler, its linker, triton: each has its own
        reason = " ".join(str(error).partition("Set TORCHDYNAMO")[0].split())
        raise ConfigError(
            "agent.compile asks torch to compile, which it cannot here; set it to auto, which needs no compiler, or "
            f"install g++, which the container images lack ({reason})"
        ) from error
