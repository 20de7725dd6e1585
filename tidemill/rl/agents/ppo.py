"""PPO: clipped probability ratios on fresh rollouts (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tidemill.logger import LateLogger
from tidemill.rl.agents.interface import Update
from tidemill.rl.agents.on_policy import ActorCriticAgent, ActorCriticPolicy, Rollout
from tidemill.rl.exploration import linear
from tidemill.rl.losses import assert_rank, generalized_advantage
from tidemill.rl.minibatches import ORDERS, Shuffle
from tidemill.rl.networks.layers.lstm import Recurrence
from tidemill.rl.optimizers import averaged_gradients, clip_
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.types import EnvSpec

_log = LateLogger()


def normalized(advantage: Tensor, mask: Tensor, share: Tensor) -> Tensor:
    """Return advantages [M] of mean 0 and standard deviation 1 (with Bessel's correction) where mask is 1.

    Args:
        advantage: Of each action, without a gradient, [M].
        mask: 0 for an action that is not trained on, [M].
        share: The mask divided by its sum, [M].
    """
    centered = advantage - (advantage * share).sum()
    variance = (centered.square() * mask).sum() / (mask.sum() - 1.0).clamp(min=1.0)
    return centered / (variance.sqrt() + 1e-8)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """Return -min(ratio * A, clip(ratio, 1 - e, 1 + e) * A) of each action, [M] (ibid., eq. 7).

    Args:
        log_ratio: log pi(a|s) less that of the policy that acted, [M].
        advantage: Of each action, without a gradient, [M].
        clip: e, a number or [].
    """
    assert_rank(1, log_ratio=log_ratio, advantage=advantage)
    ratio = log_ratio.exp()
    near = ratio.clamp(1.0 - clip, 1.0 + clip)  # type: ignore[arg-type]  # both are numbers, or both tensors
    return -torch.minimum(ratio * advantage, near * advantage)


def value_loss(value: Tensor, target: Tensor, old_value: Tensor, clip: float | Tensor | None) -> Tensor:
    """Return half the squared error of each value, [M]; with a clip the larger one of it and of the clipped value's.

    The clipped value is at most `clip` away from `old_value`, that before the update, as in OpenAI's baselines.
    """
    assert_rank(1, value=value, target=target, old_value=old_value)
    error = (value - target).square()
    if clip is not None:
        moved = old_value + (value - old_value).clamp(-clip, clip)  # type: ignore[arg-type]  # as above
        error = torch.maximum(error, (moved - target).square())
    return 0.5 * error


class Samples(NamedTuple):
    """The transitions of a rollout one by one, each [M, ...]: those of the first step of every sequence first."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    mask: Tensor
    legal: Tensor | None = None
    """Action masks, bool [M, A], where there are some."""
    recurrence: Recurrence | None = None
    """Of a recurrent policy, whose transitions are not learned from one by one: of their sequences."""

    @property
    def choices(self) -> int:
        """How many transitions, or sequences of a recurrent policy, `at` chooses from."""
        return len(self.mask) if self.recurrence is None else len(self.recurrence.recurrent_state)

    def at(self, index: Tensor) -> Samples:
        """Return some of the transitions, or of a recurrent policy some of the sequences with all their transitions."""
        recurrence = None if self.recurrence is None else self.recurrence.at(index)
        if recurrence is not None:
            steps = torch.arange(len(recurrence.is_first), device=index.device)
            index = (steps[:, None] * self.choices + index).flatten()
        return Samples(
            observation=self.observation[index],
            action=self.action[index],
            log_prob=self.log_prob[index],
            value=self.value[index],
            advantage=self.advantage[index],
            target=self.target[index],
            mask=self.mask[index],
            legal=None if self.legal is None else self.legal[index],
            recurrence=recurrence,
        )


class PPOAgent(ActorCriticAgent):
    """A policy and a value, and one optimizer. One update makes `epochs * minibatches` gradient steps."""

    def __init__(self, config: PPOConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        recording = config.compile == "cuda-graphs"
        self._clip_on_device = (
            torch.tensor(config.clip, device=device) if recording and config.clip_decay_updates else None
        )
        self._shuffle = Shuffle(config.minibatches, seed, device)
        self._said_fallen = False
        super().__init__(config, env_spec, device, seed, self._shuffle.rng)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Learn from a rollout; the priorities are 1.

        Reports of the last gradient step: losses, entropy, the approximate divergence from the policy that acted
        (Schulman 2020: mean of ratio - 1 - log ratio) and the share of clipped actions.
        """
        if self._clip_on_device is not None:
            self._clip_on_device.fill_(self.clip)
        self._say_if_fallen()
        choices = len(weight) if self._config.lstm_size else batch["is_trained"].numel()
        orders = self._shuffle.orders(choices, self._config.epochs)
        return self._run_update({**batch, ORDERS: orders}, weight, None)

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        rollout = Rollout.of(batch)
        self._normalizer.before_update(rollout, weight, self._state.group)
        samples = self.samples(batch, weight)
        metrics: dict[str, Tensor] = {}
        orders = batch[ORDERS].unbind()
        for order in orders:
            minibatches = self._shuffle.minibatches(order)
            for index in minibatches:
                # the loss of all transitions is a mean, which their order does not change
                part = samples if len(minibatches) == 1 else samples.at(index)
                is_measured = index is minibatches[-1] and (order is orders[-1] or self._config.target_kl > 0)
                loss, metrics = self.loss(part, is_measured=is_measured)
                gradients = averaged_gradients(loss, self._optimizer.parameters, self._state.group)
                metrics["grad_norm"] = clip_(gradients, self._config.max_grad_norm)
                self._optimizer.step(gradients)
            if self._config.target_kl and self._has_moved(metrics["kl"]):
                break
        self._normalizer.after_update(rollout, weight, self._state.group)
        return Update(torch.ones_like(weight), metrics)

    @torch.no_grad()
    def samples(self, batch: Mapping[str, Tensor], weight: Tensor) -> Samples:
        """Return the transitions of a batch with their advantages, by the network as it is before the update.

        Args:
            batch: What `decode` returned.
            weight: Of each item in the losses, [B].
        """
        rollout = Rollout.of(batch)
        shape = rollout.observation.shape[:2]
        value = self.network.values(rollout.observation.flatten(0, 1), rollout.recurrence).unflatten(0, shape)
        advantage, target = generalized_advantage(
            reward=self._normalizer.scaled(rollout.reward),
            discount=rollout.discount,
            continues=rollout.continues,
            value=value[:-1],
            next_value=value[1:],
            decay=self._config.gae_lambda,
        )
        legal = rollout.action_mask
        recurrence = rollout.recurrence
        return Samples(
            observation=rollout.observation[:-1].flatten(0, 1),
            action=rollout.action.flatten(0, 1),
            log_prob=rollout.log_prob.flatten(0, 1),
            value=value[:-1].flatten(0, 1),
            advantage=advantage.flatten(0, 1),
            target=target.flatten(0, 1),
            mask=(rollout.is_trained * weight).flatten(0, 1),
            legal=None if legal is None else legal[:-1].flatten(0, 1),
            recurrence=None if recurrence is None else recurrence._replace(is_first=recurrence.is_first[:-1]),
        )

    def loss(self, samples: Samples, *, is_measured: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, [], and what to report of it, nothing unless it is measured."""
        config, mask = self._config, samples.mask
        clip = self.clip if self._clip_on_device is None else self._clip_on_device
        share = mask / mask.sum().clamp(min=1.0)
        distribution, value = self.network(samples.observation, samples.legal, samples.recurrence)
        log_ratio = distribution.log_prob(samples.action) - samples.log_prob
        advantage = normalized(samples.advantage, mask, share) if config.normalize_advantage else samples.advantage
        policy = clipped_policy_loss(log_ratio, advantage, clip)
        values = value_loss(value, samples.target, samples.value, clip if config.clip_value else None)
        total = torch.add(policy, values, alpha=config.value_coefficient)
        entropy = distribution.entropy() if is_measured or config.entropy_coefficient else None
        if entropy is not None and config.entropy_coefficient:
            total = torch.sub(total, entropy, alpha=config.entropy_coefficient)
        loss = (total * share).sum()
        if entropy is None or not is_measured:
            return loss, {}
        with torch.no_grad():
            ratio = log_ratio.exp()
            reported = {
                "loss": total,
                "policy_loss": policy,
                "value_loss": values,
                "entropy": entropy,
                "value": value,
                "kl": ratio - 1.0 - log_ratio,
                "clipped": (ratio - 1.0).abs() > clip,
            }
            return loss, {name: (each * share).sum() for name, each in reported.items()}

    @property
    def clip(self) -> float:
        """How far the probability of an action may move in the next update."""
        config = self._config
        if not config.clip_decay_updates:
            return config.clip
        return linear(self._state.updates, config.clip, 0.0, config.clip_decay_updates)

    def _say_if_fallen(self) -> None:
        """Warn once if the clip has fallen to 0."""
        if 0 < self._config.clip_decay_updates <= self._state.updates and not self._said_fallen:
            self._said_fallen = True
            what = "the clip is 0, so training has next to no effect from now on; raise agent.clip_decay_updates"
            _log.warning(what, update=self._state.updates)

    def _has_moved(self, kl: Tensor) -> bool:
        """True if the KL divergence to the acting policy exceeds `target_kl`, averaged over all ranks."""
        return float(self._state.group.mean([kl])[0]) > self._config.target_kl


build_agent = PPOAgent
build_policy = ActorCriticPolicy
