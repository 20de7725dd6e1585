"""SAC for discrete actions: expectations over actions are sums, not samples (Christodoulou 2019).

The losses take the logarithm of the policy's probabilities, [B, A], which is hugely negative, but finite, where an
action is not legal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.normalizer import ActedRewards, ReplayNormalizer, reward_columns
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.exploration import random_legal
from tidemill.rl.losses import assert_rank, twin_td_loss
from tidemill.rl.mean_priority import MeanPriority, NewItemPriority
from tidemill.rl.networks.actor_critic import ActionDistribution, legal_logits
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.precision import MixedPrecision, in_float32
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.optimizers import Adam, LearningRateDecay, averaged_gradients, clip_, trained_parameters
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.soft_actor_critic import SACDiscreteConfig
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainedAgent, TrainState, subdict
from tidemill.rl.transitions import transitions
from tidemill.types import ACTION_MASK, EnvSpec


def log_policy(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return the logarithm of each action's probability, [B, A]; see `legal_logits` for those that are not legal."""
    return legal_logits(logits, legal).log_softmax(dim=-1)


def entropy(log_prob: Tensor) -> Tensor:
    """Return the policy's entropy in nats, [B]."""
    assert_rank(2, log_prob=log_prob)
    return -(log_prob.exp() * log_prob).sum(dim=1)


def soft_target(
    n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return R + discount * sum over a' of pi(a'|s') (min of both Q(s', a') - temperature * log pi(a'|s')), [B].

    It is the target of ibid., eq. 10, without a gradient.

    Args:
        n_step_return: Discounted sum of rewards, [B].
        bootstrap_discount: gamma**k, or 0 after termination, [B].
        bootstrap_q: Both target critics' values of every action, [2, B, A].
        log_prob: Of every action, [B, A].
        temperature: Weight of the entropy, [].
    """
    assert_rank(1, n_step_return=n_step_return, bootstrap_discount=bootstrap_discount)
    assert_rank(3, bootstrap_q=bootstrap_q)
    value = (log_prob.exp() * bootstrap_q.amin(dim=0)).sum(dim=1) + temperature * entropy(log_prob)
    return (n_step_return + bootstrap_discount * value).detach()


def actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean of sum over a of pi(a|s) (temperature * log pi(a|s) - min of both Q(s, a)), [] (ibid., eq. 12).

    Args:
        q: Both critics' values of every action, [2, B, A]; their parameters must not take part.
        log_prob: Of every action, [B, A].
        temperature: Weight of the entropy, [].
    """
    assert_rank(3, q=q)
    value = (log_prob.exp() * q.detach().amin(dim=0)).sum(dim=1)
    return (-temperature * entropy(log_prob) - value).mean()


class PerAction(MixedPrecision):
    """A torso and one or more stacks of layers behind it: observations [B, ...] -> numbers, float32 [E, B, A]."""

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator, stacks: int) -> None:
        super().__init__()
        self.torso = build_torso(
            config.network, env_spec, rng, config.network_settings, standardized=config.normalize_observations
        )
        features = int(self.torso.outputs)  # type: ignore[arg-type]  # every torso has it
        widths = (features, *config.hidden_sizes, env_spec.num_actions)
        self.stacks = nn.ModuleList(
            nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths)) for _ in range(stacks)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Return [E, B, A]."""
        hidden = [layer for stack in self.stacks for layer in list(stack.children())[:-1]]
        with self.matmul_precision(self.torso, *hidden):
            features = self.torso(observation)
            return torch.stack([_through(stack, features) for stack in self.stacks])


def build_actor(config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator) -> PerAction:
    """Return one network from observations [B, ...] to logits, [1, B, A]."""
    return PerAction(config, env_spec, rng, stacks=1)


def build_critic(config: SACDiscreteConfig, env_spec: EnvSpec, rng: torch.Generator) -> PerAction:
    """Return two networks, behind one torso, from observations [B, ...] to the value of each action, [2, B, A]."""
    return PerAction(config, env_spec, rng, stacks=2)


def _through(layers: nn.Module, x: Tensor) -> Tensor:
    *hidden, last = layers.children()
    for layer in hidden:
        x = torch.relu(layer(x))
    return in_float32(last, x)


class SACDiscreteAgent(TrainedAgent):
    """Actor, twin critics, their target and the temperature, with one optimizer each; an update draws nothing."""

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        for network in (self._actor, self._critic):
            network.set_update_format(config, env_spec, device)
        self._target = TargetNetwork(self._critic, config.target_update_period, config.tau)
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self._mean_priority = MeanPriority(device)
        rate = config.learning_rate
        epsilon = config.optimizer_epsilon
        self._actor_optimizer = Adam(trained_parameters(self._actor), rate, epsilon=epsilon)
        self._critic_optimizer = Adam(trained_parameters(self._critic), rate, epsilon=epsilon)
        self._temperature_optimizer = Adam([self._log_temperature], rate, epsilon=epsilon)
        networks: dict[str, nn.Module] = {"actor": self._actor, "critic": self._critic, "target": self._target.network}
        self._normalizer = ReplayNormalizer(config, networks.values()).to(device)
        self._state = TrainState(
            networks | self._normalizer.modules_by_name,
            {
                "actor_optimizer": self._actor_optimizer,
                "critic_optimizer": self._critic_optimizer,
                "temperature_optimizer": self._temperature_optimizer,
            },
            tensors={"log_temperature": self._log_temperature, "mean_priority": self._mean_priority.mean},
        )
        recording = config.compile == "cuda-graphs"
        optimizers = self._state.optimizers.values()
        decay = LearningRateDecay(optimizers, config.learning_rate_decay_updates, on_device=recording)
        self._run_update = recorded(self._updated, config.compile, device, self._state, decay)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        return transitions(
            columns,
            index,
            self._frame_stack,
            self._config.n_step,
            self._config.gamma,
            extras=(*self._masks, *reward_columns(self._config)),
            bootstrap_extras=self._masks,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update critics, actor and temperature, then the target."""
        return self._run_update(batch, weight, self._target.is_due(self._state.updates + 1))

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        batch = self._normalizer.counted(batch, weight, self._state.group)
        temperature = self._log_temperature.exp()
        q, priority, metrics = self._update_critic(batch, weight, temperature)
        metrics |= self._update_actor(batch, q, temperature)
        self._target.update(self._critic_optimizer.parameters, self._state.updates + 1)
        return Update(priority, metrics | {"temperature": temperature})

    def _update_critic(
        self, batch: Mapping[str, Tensor], weight: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the values of every action before the step, [2, B, A], the items' priorities, [B], and metrics."""
        with torch.no_grad():
            following = batch["bootstrap_observation"]
            log_prob = log_policy(self._actor(following)[0], batch.get(f"bootstrap_{ACTION_MASK}"))
            target = soft_target(
                n_step_return=batch["n_step_return"],
                bootstrap_discount=batch["bootstrap_discount"],
                bootstrap_q=self._target.network(following),
                log_prob=log_prob,
                temperature=temperature,
            )
        q = self._critic(batch["observation"])
        chosen = q.gather(2, batch["action"].expand(2, -1).unsqueeze(2)).squeeze(2)
        td = twin_td_loss(chosen, target, weight)
        grad_norm, mean_priority = self._step(self._critic_optimizer, td.loss, td.td_error.mean())
        self._mean_priority.update(mean_priority)
        metrics = {"loss": td.loss.detach(), "q": chosen.detach().mean(), "critic_grad_norm": grad_norm}
        return q.detach(), td.td_error, metrics

    def _update_actor(self, batch: Mapping[str, Tensor], q: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        legal = batch.get(ACTION_MASK)
        log_prob = log_policy(self._actor(batch["observation"])[0], legal)
        entropies = entropy(log_prob.detach())
        count = torch.full_like(entropies, q.shape[2]) if legal is None else legal.sum(dim=1).to(entropies.dtype)
        surplus = (entropies - self._config.target_entropy_share * count.log()).mean()
        loss = actor_loss(q, log_prob, temperature)
        grad_norm, surplus = self._step(self._actor_optimizer, loss, surplus)
        if self._config.temperature == "learned":
            self._temperature_optimizer.step([surplus])
        return {"entropy": entropies.mean(), "actor_loss": loss.detach(), "actor_grad_norm": grad_norm}

    def _step(self, optimizer: Adam, of: Tensor, also: Tensor) -> tuple[Tensor, Tensor]:
        """Step down the gradient of a loss; return its norm before it was clipped, and the ranks' mean of `also`."""
        *averaged, also = averaged_gradients(of, optimizer.parameters, self._state.group, [also])
        norm = clip_(averaged, self._config.max_grad_norm)
        optimizer.step(averaged)
        return norm, also

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and what an item is worth before its first update."""
        return self._state.copy_of("actor") | self._mean_priority.published()


class SACDiscretePolicy:
    """Samples from the actor to explore; takes its most likely action to be evaluated."""

    recurrent_state_size = 0
    priority_uses_params = True

    def __init__(self, config: SACDiscreteConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._config = config
        self._num_actions = env_spec.num_actions
        self._device = context.device
        rng = torch.Generator().manual_seed(context.seed)
        self._actor = build_actor(config, env_spec, rng).to(context.device).requires_grad_(False).eval()
        self._rng = np.random.default_rng(context.seed)
        self._noise = torch.Generator(context.device).manual_seed(context.seed)
        self._new_item_priority = NewItemPriority()
        self._rewards = ActedRewards(config)

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
    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return random legal actions [N] for the first `start_steps`, then samples."""
        extras: dict[str, Array] = {**self._rewards.extras(policy_input)}
        if taken is not None:
            return PolicyOutput(taken, extras=extras)
        if env_steps < self._config.start_steps:
            legal = policy_input.action_mask
            allowed = np.ones((len(policy_input), self._num_actions), dtype=np.bool_) if legal is None else legal
            return PolicyOutput(random_legal(self._rng, allowed), extras=extras)
        action = self._distribution(policy_input, output).sample(self._noise).cpu().numpy()
        return PolicyOutput(action, extras=extras)

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


build_agent = SACDiscreteAgent
build_policy = SACDiscretePolicy
