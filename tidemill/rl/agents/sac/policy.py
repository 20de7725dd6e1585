"""Soft actor-critic's acting side."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.agents.sac.config import SACConfig
from tidemill.rl.agents.sac.networks import build_actor
from tidemill.rl.held_actions import HeldActions
from tidemill.rl.networks.flat import flat
from tidemill.rl.networks.squashed_gaussian import mode, split
from tidemill.rl.parts import part
from tidemill.rl.percept import Percept
from tidemill.types import EnvSpec


class SACPolicy:
    """Samples from the actor to explore; acts by its mean, or its average's, to be evaluated."""

    memory_size = 0

    def __init__(self, config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._action_shape = env_spec.action_shape
        self._device = device
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._evaluated = self._actor
        if config.policy_average:
            self._evaluated = build_actor(config, env_spec, rng).to(device)
        self._rng = np.random.default_rng(seed)
        self._noise_rng = torch.Generator(device).manual_seed(seed)
        self._noise: Tensor | None = None  # of the last tick, [N, A]
        self._first_priority = 1.0
        self._held = HeldActions(config.hold_probability, config.hold_steps, np.random.default_rng(seed + 1))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*`, with a policy average `average.*`, and `first_priority` if it is there."""
        self._first_priority = float(state.get("first_priority", self._first_priority))
        self._actor.load_state_dict(part("actor", state))
        if self._config.policy_average:
            self._evaluated.load_state_dict(part("average", state))

    @torch.inference_mode()
    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Return uniform actions for the first `random_steps`, then samples of the policy.

        The first `greedy_share` of the environments act by the actor's mean; the others may hold random actions.
        """
        shape = (len(percept), *self._action_shape)
        if env_steps < self._config.random_steps:
            return Decision(self._rng.uniform(-1.0, 1.0, shape).astype(np.float32))
        mean, log_std = split(self._actor(self._tensor(percept.observation))[0])
        noise = self._next_noise(mean.shape, percept.is_first)
        quiet = round(self._config.greedy_share * len(percept))
        noise[:quiet] = 0.0
        action = torch.tanh(torch.addcmul(mean, log_std.exp(), noise)).cpu().numpy()
        if self._config.hold_probability:
            action = self._held.replace(action, may_hold=np.arange(len(action)) >= quiet)
        return Decision(action.reshape(shape))

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

    @torch.inference_mode()
    def greedy(self, percept: Percept) -> Decision:
        """Return the squashed mean, float32 [N, *action_shape]."""
        action = mode(self._evaluated(self._tensor(percept.observation))[0]).cpu().numpy()
        return Decision(action.reshape(len(percept), *self._action_shape))

    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return for each window what items were lately worth to the learner, until it has seen this one."""
        return np.full(ticks["reward"].shape[1], self._first_priority, dtype=np.float32)

    def _tensor(self, observation: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(observation)).to(self._device)
        return flat(tensor)


def build(config: SACConfig, env_spec: EnvSpec, acting: Acting) -> SACPolicy:
    """Return the acting side of SAC; `tidemill.rl.agents.build` calls this."""
    return SACPolicy(config, env_spec, acting.device, acting.seed)
