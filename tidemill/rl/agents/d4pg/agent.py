"""D4PG's learner side (Barth-Maron et al. 2018, algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.adam import Adam
from tidemill.rl.agents.d4pg.config import D4PGConfig
from tidemill.rl.agents.d4pg.loss import actor_loss, critic_loss
from tidemill.rl.agents.d4pg.networks import build_actor, build_critic
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.categorical import atoms, categorical_target, expectation
from tidemill.rl.networks.flat import flat
from tidemill.rl.parts import Parts, move_towards
from tidemill.rl.ranks import Ranks
from tidemill.rl.windows import transitions
from tidemill.types import EnvSpec


class D4PGAgent:
    """Actor and a critic that predicts distributions of returns, a target of each, and an optimizer of each."""

    def __init__(self, config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._frame_stack = config, env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self._support = atoms(config.value_min, config.value_max, config.num_atoms, device)
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        self._target_actor = copy.deepcopy(self._actor).requires_grad_(False)
        self._target_critic = copy.deepcopy(self._critic).requires_grad_(False)
        self._actor_optimizer = Adam(self._actor.parameters(), config.actor_learning_rate)
        self._critic_optimizer = Adam(self._critic.parameters(), config.critic_learning_rate)
        self._parts = Parts(
            {
                "actor": self._actor,
                "critic": self._critic,
                "target_actor": self._target_actor,
                "target_critic": self._target_critic,
            },
            {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic_optimizer},
        )

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.windows.transitions`."""
        return transitions(columns, index, self._frame_stack, self._config.n_step, self._config.gamma)

    def join(self, ranks: Ranks) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._parts.ranks = ranks

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critic, then the actor, and move the targets if it is time.

        New priorities are how far each prediction is from its target, a divergence in nats.
        """
        observation = flat(batch["observation"])
        logits = self._critic(observation, batch["action"].flatten(1))
        result = critic_loss(logits, self._target(batch), weight)
        self._critic_optimizer.minimize(result.loss, self._parts.ranks)
        # `minimize` asks for the gradients of the actor's parameters alone: the critic's are not touched
        loss = actor_loss(self._critic(observation, self._actor(observation)), self._support)
        self._actor_optimizer.minimize(loss, self._parts.ranks)
        self._parts.updates += 1
        if self._parts.updates % self._config.target_every == 0:
            self._move_targets()
        q = expectation(logits.detach(), self._support).mean()
        return Update(result.divergence, {"loss": result.loss.detach(), "q": q, "actor_q": -loss.detach()})

    @torch.no_grad()
    def _target(self, batch: Mapping[str, Tensor]) -> Tensor:
        following = flat(batch["bootstrap_observation"])
        probabilities = self._target_critic(following, self._target_actor(following)).softmax(dim=-1)
        return categorical_target(batch["n_step_return"], batch["bootstrap_discount"], probabilities, self._support)

    def _move_targets(self) -> None:
        move_towards(list(self._target_actor.parameters()), self._actor_optimizer.parameters, self._config.tau)
        move_towards(list(self._target_critic.parameters()), self._critic_optimizer.parameters, self._config.tau)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`."""
        return self._parts.copy_of("actor")

    def state_dict(self) -> State:
        """Return networks, targets, optimizers and counter; an update draws no random numbers."""
        return self._parts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._parts.load_state_dict(state)


def build(config: D4PGConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> D4PGAgent:
    """Return the learner's side of D4PG; `tidemill.rl.agents.build` calls this."""
    return D4PGAgent(config, env_spec, device, seed)
