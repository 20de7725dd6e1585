"""The learner's side of every deterministic policy gradient: an actor, a critic and what follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.optimizers import Adam, LearningRateDecay, global_norm
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainState
from tidemill.rl.transitions import transitions
from tidemill.rl.update_graph import recorded
from tidemill.types import WindowSpec

Learn = Callable[[Mapping[str, Tensor], Tensor], Update]
"""`Agent.update` of one algorithm: what distinguishes it from the others."""


class ActorCritic:
    """An actor, a critic, a target that follows each of them, and an optimizer of each."""

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        actor_optimizer: Adam,
        critic_optimizer: Adam,
        *,
        tau: float,
        target_update_period: int = 0,
        noise: torch.Generator | None = None,
    ) -> None:
        """Copy both networks to their targets.

        Args:
            actor: From observations [B, O] to actions [B, A].
            critic: Values actions.
            actor_optimizer: Of the actor's parameters alone.
            critic_optimizer: Of the critic's.
            tau: Fraction of a network copied to its target at each update; only if `target_update_period` is 0.
            target_update_period: Updates between two copies to the targets; 0 moves them by `tau` instead.
            noise: Draws what updates need; None if they draw nothing.
        """
        self.actor, self.critic = actor, critic
        self._actor_optimizer, self._critic_optimizer = actor_optimizer, critic_optimizer
        self._actor_target = TargetNetwork(actor, target_update_period, tau)
        self._critic_target = TargetNetwork(critic, target_update_period, tau)
        self.target_actor, self.target_critic = self._actor_target.network, self._critic_target.network
        self.state = TrainState(
            {"actor": actor, "critic": critic, "target_actor": self.target_actor, "target_critic": self.target_critic},
            {"actor_optimizer": actor_optimizer, "critic_optimizer": critic_optimizer},
            noise,
        )
        self._grad_norms: dict[str, Tensor] = {}

    def update_critic(self, loss: Tensor) -> None:
        """Take one step of the critic down the gradient of its loss, []."""
        self._measure("critic_grad_norm", self._critic_optimizer.minimize(loss, self.state.group))

    def update_actor(self, loss: Tensor) -> None:
        """Take one step of the actor down the gradient of its loss, [], which the critic's parameters do not follow."""
        self._measure("actor_grad_norm", self._actor_optimizer.minimize(loss, self.state.group))

    def take_grad_norms(self) -> dict[str, Tensor]:
        """Return the norms of this update's gradients, each [], if it is one that is measured."""
        taken, self._grad_norms = self._grad_norms, {}
        return taken

    def _measure(self, name: str, gradients: list[Tensor]) -> None:
        if self.state.is_measured:
            self._grad_norms[name] = global_norm(gradients)

    def targets_are_due(self) -> bool:
        """Return whether `update_targets` would move them."""
        return self._actor_target.is_due(self.state.updates + 1)

    def update_targets(self) -> None:
        """Move both targets, if it is time."""
        update = self.state.updates + 1
        self._actor_target.update(self._actor_optimizer.parameters, update)
        self._critic_target.update(self._critic_optimizer.parameters, update)


class DeterministicSettings(Protocol):
    """What the settings of these algorithms have in common."""

    @property
    def n_step(self) -> int:
        """Rewards summed before bootstrapping."""

    @property
    def gamma(self) -> float:
        """Discount of one step."""

    @property
    def learning_rate_decay_updates(self) -> int:
        """Updates over which both step sizes fall linearly to 0; 0 keeps them."""

    @property
    def compile(self) -> str:
        """Whether updates are recorded; see `tidemill.rl.update_graph.recorded`."""


class DeterministicAgent:
    """Makes the updates of one of the algorithms, and keeps what they need."""

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

    def __init__(
        self,
        networks: ActorCritic,
        learn: Learn,
        frame_stack: int,
        settings: DeterministicSettings,
        *,
        policy_delay: int = 1,
    ) -> None:
        """Put the parts together.

        Args:
            networks: What learns.
            learn: Makes one update of them, which is counted afterwards.
            frame_stack: Observations the networks see at once.
            settings: Of the algorithm.
            policy_delay: Updates from one that `learn` makes of the actor to the next.
        """
        self.window = WindowSpec(history=frame_stack - 1, steps=settings.n_step)
        self._networks, self._state, self._learn = networks, networks.state, learn
        self._frame_stack, self._n_step, self._gamma = frame_stack, settings.n_step, settings.gamma
        self._policy_delay = policy_delay
        recording = settings.compile == "cuda-graphs"
        optimizers = self._state.optimizers.values()
        self._decay = LearningRateDecay(optimizers, settings.learning_rate_decay_updates, on_device=recording)
        device = next(networks.actor.parameters()).device
        self._run_update = recorded(self._updated, settings.compile, device, self._state)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        return transitions(columns, index, self._frame_stack, self._n_step, self._gamma)

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._state.group = group

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make one update."""
        self._decay.at(self._state.updates)
        updates_actor = self._state.updates % self._policy_delay == 0
        kind = updates_actor, self._networks.targets_are_due(), self._state.is_measured
        update = self._run_update(batch, weight, kind)
        self._state.updates += 1
        return update

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        update = self._learn(batch, weight)
        update.metrics.update(self._networks.take_grad_norms())
        return update

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the parameters: `actor.*`, and for initial priorities `critic.*`."""
        return self._state.copy_of("actor", "critic")

    def state_dict(self) -> State:
        """Return networks, targets, optimizers, counter and, if updates draw random numbers, their generator."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        self._state.load_state_dict(state)
