"""IMPALA: V-trace, which corrects fresh rollouts for the policy that acted (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.on_policy import ActorCriticAgent, ActorCriticPolicy, Rollout
from tidemill.rl.losses import vtrace
from tidemill.rl.optimizers import averaged_gradients, clip_
from tidemill.rl.settings.on_policy import IMPALAConfig
from tidemill.types import EnvSpec


class IMPALAAgent(ActorCriticAgent):
    """A policy and a value, and one optimizer; V-trace corrects for the policy that acted."""

    def __init__(self, config: IMPALAConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        super().__init__(config, env_spec, device, seed)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the loss of whole rollouts; the priorities are 1."""
        return self._run_update(batch, weight, None)

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        rollout = Rollout.of(batch)
        self._normalizer.before_update(rollout, weight, self._state.group)
        loss, metrics = self.loss(batch, weight)
        gradients = averaged_gradients(loss, self._optimizer.parameters, self._state.group)
        metrics["grad_norm"] = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        self._normalizer.after_update(rollout, weight, self._state.group)
        return Update(torch.ones_like(weight), metrics)

    def loss(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, a mean over the transitions (Espeholt et al. 2018, section 4.2), [], and what to report."""
        config = self._config
        rollout = Rollout.of(batch)
        shape = rollout.observation.shape[:2]
        legal = None if rollout.action_mask is None else rollout.action_mask.flatten(0, 1)
        distribution, value = self.network(rollout.observation.flatten(0, 1), legal, rollout.recurrence)
        value = value.unflatten(0, shape)
        # the rows of time come first, so those to bootstrap from are the last ones
        acted = distribution.first(rollout.reward.numel())
        log_prob = acted.log_prob(rollout.action.flatten(0, 1)).unflatten(0, rollout.reward.shape)
        log_ratio = log_prob - rollout.log_prob
        advantage, target = vtrace(
            log_ratio=log_ratio,
            reward=self._normalizer.scaled(rollout.reward),
            discount=rollout.discount,
            continues=rollout.continues,
            value=value[:-1],
            next_value=value[1:],
            max_rho=config.max_rho,
            max_c=config.max_c,
            decay=config.trace_decay,
        )
        mask = rollout.is_trained * weight
        # of all ranks, so that their mean is that of the whole batch, whatever each has of it
        trained = self._state.group.mean([mask.sum()])[0].clamp(min=1.0)
        policy = -(mask * advantage * log_prob).sum() / trained
        values = 0.5 * (mask * (target - value[:-1]).square()).sum() / trained
        entropy = (mask.flatten() * acted.entropy()).sum() / trained
        loss = policy + config.value_coefficient * values - config.entropy_coefficient * entropy
        rho = (mask * log_ratio.exp().clamp(max=config.max_rho)).sum() / trained
        reported = {
            "loss": loss,
            "policy_loss": policy,
            "value_loss": values,
            "entropy": entropy,
            "value": (mask * value[:-1]).sum() / trained,
            "rho": rho,
        }
        return loss, {name: scalar.detach() for name, scalar in reported.items()}


build_agent = IMPALAAgent
build_policy = ActorCriticPolicy
