"""Discrete soft actor-critic's acting side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.agents.sac_discrete.loss import log_policy
from tidemill.rl.agents.sac_discrete.networks import build_actor
from tidemill.rl.exploration import random_legal
from tidemill.rl.mean_priority import NewItemPriority
from tidemill.rl.networks.actor_critic import ActionDistribution
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.soft_actor_critic import SACDiscreteConfig
from tidemill.rl.train_state import subdict
from tidemill.types import EnvSpec


class SACDiscretePolicy:
    """Samples from the actor to explore; takes its most likely action to be evaluated."""

    recurrent_state_size = 0
    priority_uses_params = True

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._num_actions, self._device = config, env_spec.num_actions, device
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device).requires_grad_(False).eval()
        self._rng = np.random.default_rng(seed)
        self._noise = torch.Generator(device).manual_seed(seed)
        self._new_item_priority = NewItemPriority()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*`, and `initial_priority` if it is there."""
        self._new_item_priority.load(state)
        self._actor.load_state_dict(subdict("actor", state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return random legal actions [N] for the first `start_steps`, then samples; in evaluation the likeliest."""
        if evaluation:
            return PolicyOutput(self._distribution(policy_input, self.forward(policy_input)).mode().cpu().numpy())
        output = {} if env_steps < self._config.start_steps else self.forward(policy_input)
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the actor's numbers as `logits`, [N, A]."""
        observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        return {"logits": self._actor(observation)[0]}

    @torch.inference_mode()
    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return random legal actions [N] for the first `start_steps`, then samples."""
        if env_steps < self._config.start_steps:
            legal = policy_input.action_mask
            allowed = np.ones((len(policy_input), self._num_actions), dtype=np.bool_) if legal is None else legal
            return PolicyOutput(random_legal(self._rng, allowed))
        return PolicyOutput(self._distribution(policy_input, output).sample(self._noise).cpu().numpy())

    def _distribution(self, policy_input: PolicyInput, output: Mapping[str, Tensor]) -> ActionDistribution:
        legal = policy_input.action_mask
        mask = None if legal is None else torch.from_numpy(legal).to(self._device)
        return ActionDistribution(log_policy(output["logits"], mask), None)

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the likeliest actions."""
        return EvaluationNetwork(self._actor, lambda actor, seen: actor(seen)[0].argmax(1))

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return for each window what items were lately worth to the learner, until it has seen this one."""
        return self._new_item_priority.of(steps["reward"].shape[1])


def build(config: SACDiscreteConfig, env_spec: EnvSpec, context: PolicyContext) -> SACDiscretePolicy:
    """Return the acting side of discrete SAC; `tidemill.rl.agents.build` calls this."""
    return SACDiscretePolicy(config, env_spec, context.device, context.seed)
