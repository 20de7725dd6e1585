"""Soft actor-critic's acting side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.action_noise import HeldActions
from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.agents.sac.networks import build_actor
from tidemill.rl.mean_priority import NewItemPriority
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.squashed_gaussian import mode, split
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.rl.train_state import subdict
from tidemill.types import EnvSpec


class SACPolicy:
    """Samples from the actor to explore; acts by its mean, or its average's, to be evaluated."""

    recurrent_state_size = 0
    priority_uses_params = True

    def __init__(self, config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._action_shape = env_spec.action_shape
        self._device = device
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device).eval()
        self._evaluated = self._actor
        if config.actor_ema_decay:
            self._evaluated = build_actor(config, env_spec, rng).to(device).eval()
        self._rng = np.random.default_rng(seed)
        self._noise_rng = torch.Generator(device).manual_seed(seed)
        self._noise: Tensor | None = None  # of the last step, [N, A]
        self._new_item_priority = NewItemPriority()
        self._held = HeldActions(config.hold_probability, config.hold_steps, np.random.default_rng(seed + 1))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*`, with a policy average `average.*`, and `initial_priority` if it is there."""
        self._new_item_priority.load(state)
        self._actor.load_state_dict(subdict("actor", state))
        if self._config.actor_ema_decay:
            self._evaluated.load_state_dict(subdict("average", state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then samples; in evaluation the squashed mean.

        The first `greedy_fraction` of the environments act by the actor's mean; the others may hold random actions.
        """
        if evaluation:
            mean_action = mode(self._evaluated(self._tensor(policy_input.observation))[0]).cpu().numpy()
            return PolicyOutput(mean_action.reshape(len(policy_input), *self._action_shape))
        output = {} if env_steps < self._config.start_steps else self.forward(policy_input)
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return what the actor's mean and standard deviation are made of as `head`, [N, 2 A]."""
        return {"head": self._actor(self._tensor(policy_input.observation))[0]}

    @torch.inference_mode()
    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then samples; see `act`."""
        shape = (len(policy_input), *self._action_shape)
        if env_steps < self._config.start_steps:
            return PolicyOutput(self._rng.uniform(-1.0, 1.0, shape).astype(np.float32))
        mean, log_std = split(output["head"])
        noise = self._next_noise(mean.shape, policy_input.is_first)
        quiet = round(self._config.greedy_fraction * len(policy_input))
        noise[:quiet] = 0.0
        action = torch.tanh(torch.addcmul(mean, log_std.exp(), noise)).cpu().numpy()
        if self._config.hold_probability:
            action = self._held.replace(action, may_hold=np.arange(len(action)) >= quiet)
        return PolicyOutput(action.reshape(shape))

    def _next_noise(self, shape: torch.Size, is_first: NDArray[np.bool_]) -> Tensor:
        """Return standard normal noise [N, A], a first-order autoregressive process in each episode."""
        fresh = torch.randn(shape, generator=self._noise_rng, device=self._device)
        correlation = self._config.noise_correlation
        if correlation and self._noise is not None and self._noise.shape == shape:
            lasting = correlation * self._noise + math.sqrt(1.0 - correlation**2) * fresh
            begins = torch.from_numpy(is_first)
            lasting[begins] = fresh[begins]
            fresh = lasting
        self._noise = fresh.clone()
        return fresh

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return for each window what items were lately worth to the learner, until it has seen this one."""
        return self._new_item_priority.of(steps["reward"].shape[1])

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the squashed mean."""
        return EvaluationNetwork(
            self._evaluated, lambda actor, seen: mode(actor(seen)[0]).reshape(-1, *self._action_shape)
        )

    def _tensor(self, observation: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(observation)).to(self._device)


def build(config: SACConfig, env_spec: EnvSpec, context: PolicyContext) -> SACPolicy:
    """Return the acting side of SAC; `tidemill.rl.agents.registry` calls this."""
    return SACPolicy(config, env_spec, context.device, context.seed)
