"""TD3's learner side (Fujimoto et al. 2018, algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.adam import Adam
from tidemill.rl.agents.interface import Array, State, Update
from tidemill.rl.agents.td3.config import TD3Config
from tidemill.rl.agents.td3.loss import actor_loss, clipped_double_q_target, smoothed_action
from tidemill.rl.agents.td3.networks import build_actor, build_critic
from tidemill.rl.losses import twin_td_loss
from tidemill.rl.networks.flat import flat
from tidemill.rl.parts import Parts, move_towards
from tidemill.rl.ranks import Ranks, draw_normal
from tidemill.rl.windows import transitions
from tidemill.types import EnvSpec


class TD3Agent:
    """Actor and twin critics, a slowly following target of each, and an optimizer of each."""

    def __init__(self, config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._frame_stack = config, env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        self._target_actor = copy.deepcopy(self._actor).requires_grad_(False)
        self._target_critic = copy.deepcopy(self._critic).requires_grad_(False)
        self._actor_optimizer = Adam(self._actor.parameters(), config.actor_learning_rate)
        self._critic_optimizer = Adam(self._critic.parameters(), config.critic_learning_rate)
        self._noise = torch.Generator(device).manual_seed(seed)
        self._parts = Parts(
            {
                "actor": self._actor,
                "critic": self._critic,
                "target_actor": self._target_actor,
                "target_critic": self._target_critic,
            },
            {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic_optimizer},
            self._noise,
        )

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.windows.transitions`."""
        return transitions(columns, index, self._frame_stack, self._config.n_step, self._config.gamma)

    def join(self, ranks: Ranks) -> None:
        """Make every further update together with the same agent of the other ranks."""
        self._parts.ranks = ranks

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update the critics, then every `actor_every` updates the actor and all targets."""
        observation = flat(batch["observation"])
        q = self._values(observation, batch["action"].flatten(1))
        result = twin_td_loss(q, self._target(batch), weight, self._config.max_td_error)
        self._critic_optimizer.minimize(result.loss, self._parts.ranks)
        metrics = {"loss": result.loss.detach(), "q": q.detach().mean()}
        if self._parts.updates % self._config.actor_every == 0:
            metrics["actor_q"] = self._update_actor(observation)
            self._move_targets()
        self._parts.updates += 1
        return Update(result.td_error, metrics)

    def _values(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return both critics' values [2, B]."""
        q: Tensor = self._critic(torch.cat((observation, action), dim=-1))
        return q.squeeze(-1)

    @torch.no_grad()
    def _target(self, batch: Mapping[str, Tensor]) -> Tensor:
        following = flat(batch["bootstrap_observation"])
        action = self._target_actor(following)
        noise = draw_normal(action.shape, self._parts.ranks, self._noise, action.device) * self._config.target_noise
        action = smoothed_action(action, noise, self._config.target_noise_limit)
        bootstrap_q = self._target_critic(torch.cat((following, action), dim=-1)).squeeze(-1)
        return clipped_double_q_target(batch["n_step_return"], batch["bootstrap_discount"], bootstrap_q)

    def _update_actor(self, observation: Tensor) -> Tensor:
        """Take one step and return the first critic's mean value of the actor's actions, []."""
        # `minimize` asks for the gradients of the actor's parameters alone: the critics' are not touched
        loss = actor_loss(self._values(observation, self._actor(observation)))
        self._actor_optimizer.minimize(loss, self._parts.ranks)
        return -loss.detach()

    def _move_targets(self) -> None:
        move_towards(list(self._target_actor.parameters()), self._actor_optimizer.parameters, self._config.tau)
        move_towards(list(self._target_critic.parameters()), self._critic_optimizer.parameters, self._config.tau)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`."""
        return self._parts.copy_of("actor")

    def state_dict(self) -> State:
        """Return networks, targets, optimizers, noise generator and counter."""
        return self._parts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict` was called."""
        self._parts.load_state_dict(state)


def build(config: TD3Config, env_spec: EnvSpec, device: torch.device, seed: int) -> TD3Agent:
    """Return the learner's side of TD3; `tidemill.rl.agents.build` calls this."""
    return TD3Agent(config, env_spec, device, seed)
