"""The acting side of every deterministic policy gradient: an actor, and noise while it explores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.action_noise import ActionNoise, NoiseConfig
from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.returns import n_step
from tidemill.rl.train_state import subdict

TDErrorFn = Callable[[Mapping[str, Tensor]], Tensor]
"""How far the networks are from their own targets on a batch such as `Agent.update` takes, [B]."""


class Settings(Protocol):
    """Settings that every deterministic policy gradient has."""

    @property
    def noise(self) -> NoiseConfig:
        """How noise is added to actions while exploring."""

    @property
    def start_steps(self) -> int:
        """Environment steps of the whole cluster for which actions are uniformly random."""

    @property
    def gamma(self) -> float:
        """Discount of one environment step."""


class DeterministicPolicy:
    """Acts by the actor; adds noise to its actions to explore."""

    recurrent_state_size = 0
    priority_uses_params = True

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        td_error_fn: TDErrorFn,
        settings: Settings,
        action_shape: tuple[int, ...],
        context: PolicyContext,
    ) -> None:
        """Put the parts together.

        Args:
            actor: Maps observations [B, ...] to flat actions [B, A]; this object then owns it.
            critic: Values actions, for initial priorities; this object then owns it.
            td_error_fn: Gives initial priorities, by these two networks.
            settings: The algorithm's.
            action_shape: Shape of one action.
            context: Where it acts, and the seed of the noise.
        """
        self._actor = actor.to(context.device).requires_grad_(False).eval()
        self._critic = critic.to(context.device).requires_grad_(False).eval()
        self._td_error_fn, self._gamma = td_error_fn, settings.gamma
        self._action_shape, self._start_steps, self._device = action_shape, settings.start_steps, context.device
        self._noise = ActionNoise(settings.noise, context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*` and `critic.*`."""
        self._actor.load_state_dict(subdict("actor", state))
        self._critic.load_state_dict(subdict("critic", state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then the actor's with noise; in evaluation without noise.

        Initial priorities want back what was seen and what was done.
        """
        if evaluation:
            return PolicyOutput(self._shaped(self.forward(policy_input)["action"].cpu().numpy()))
        output = {} if env_steps < self._start_steps else self.forward(policy_input)
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:  # noqa: ARG002 - the interface's
        """Return the actor's actions without noise as `action`, [N, A]."""
        tensor = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        return {"action": self._actor(tensor)}

    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then the actor's with noise; see `act`."""
        if env_steps < self._start_steps:
            flat_action = self._noise.uniform((len(policy_input), math.prod(self._action_shape)))
        else:
            flat_action = self._noise.add_noise(output["action"].cpu().numpy(), policy_input.is_first)
        action = self._shaped(flat_action)
        return PolicyOutput(action, {"observation": policy_input.observation, "action": action})

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest step, [K].

        It is exact while networks and targets are equal to these and updates draw no noise (Horgan et al. 2018,
        section 3).
        """
        reward, terminated, truncated = (steps[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._gamma)
        arrays = {
            "observation": steps["observation"][0],
            "action": steps["action"][0],
            "n_step_return": target.return_,
            "bootstrap_discount": target.discount,
            "bootstrap_observation": steps["observation"][target.bootstrap_index, np.arange(len(target.return_))],
        }
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for name, array in arrays.items()}
        priority: NDArray[np.float32] = self._td_error_fn(batch).cpu().numpy()
        return priority

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actor's actions."""
        return EvaluationNetwork(self._actor, lambda actor, seen: actor(seen).reshape(-1, *self._action_shape))

    def _shaped(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        return action.reshape(len(action), *self._action_shape)
