"""Soft actor-critic (Haarnoja et al. 2018, algorithm 1, without a value network), TQC and CrossQ; also with LSTMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tidemill.arrays import Array
from tidemill.rl.action_noise import HeldActions
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.items import Transitions, items_of
from tidemill.rl.agents.normalizer import ActedRewards, ReplayNormalizer
from tidemill.rl.agents.sac_heads import build_value_head, soft_target
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.mean_priority import MeanPriority, NewItemPriority
from tidemill.rl.networks.ensemble_mlp import EnsembleMLP, LayerActivations, TorsoEnsembleMLP
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.layers.batch_renorm import BATCH_NORM, RENORM, RenormBounds
from tidemill.rl.networks.recurrent import needed_torso, one_step, remembered
from tidemill.rl.networks.squashed_gaussian import head_gradient, mode, sample, split
from tidemill.rl.optimizers import Adam, LearningRateDecay, global_norm, laid_as, trained_parameters
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.process_group import draw_normal
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainedAgent, TrainState, subdict
from tidemill.types import EnvSpec


def build_actor(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return one network from observations [B, ...] to mean and log standard deviation, [1, B, 2 A]."""
    outputs = 2 * env_spec.action_size
    return _behind_torso(config, env_spec, rng, config.hidden_sizes, ensemble_size=1, actions=0, outputs=outputs)


def build_critic(config: SACConfig, env_spec: EnvSpec, rng: torch.Generator) -> EnsembleMLP:
    """Return the critics, behind one torso, from observations [B, ...] and actions [B, A] to [critics, B, K].

    K is the number of quantiles, or 1 for a value.
    """
    return _behind_torso(
        config,
        env_spec,
        rng,
        config.critic_sizes or config.hidden_sizes,
        ensemble_size=config.critics,
        actions=env_spec.action_size,
        outputs=config.quantiles or 1,
        layer_norm=config.critic_layer_norm,
    )


def _behind_torso(
    config: SACConfig,
    env_spec: EnvSpec,
    rng: torch.Generator,
    hidden_sizes: Sequence[int],
    *,
    ensemble_size: int,
    actions: int,
    outputs: int,
    layer_norm: bool = False,
) -> EnsembleMLP:
    """Return an ensemble whose gradients are written out, behind the torso if it needs one."""
    torso = needed_torso(config, env_spec, rng, config.lstm_size, starts_empty=actions > 0)
    features = env_spec.observation_size if torso is None else int(torso.outputs)  # type: ignore[arg-type]
    mlp = EnsembleMLP(ensemble_size, features + actions, hidden_sizes, outputs, rng, layer_norm, config.crossq)
    return mlp if torso is None else TorsoEnsembleMLP(torso, mlp)


class SACAgent(TrainedAgent):
    """Actor, critics, their target unless it is CrossQ, and the temperature, with one optimizer each.

    Gradients are written out, see `tidemill.rl.networks.ensemble_mlp`; tests hold them against autograd.
    """

    def __init__(self, config: SACConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._items = items_of(config, env_spec.frame_stack)
        self.observation_columns = self._items.observation_columns
        self.recurrent_state_size = config.recurrent_state_size
        self.window = config.window(env_spec.frame_stack)
        self._action_size = math.prod(env_spec.action_shape)
        rng = torch.Generator().manual_seed(seed)
        self._actor = build_actor(config, env_spec, rng).to(device)
        self._critic = build_critic(config, env_spec, rng).to(device)
        for network in (self._actor, self._critic):
            network.set_update_format(config, env_spec, device)
        self._average = TargetNetwork(self._actor, every=0, tau=1.0 - config.actor_ema_decay)
        self._target = None if config.crossq else TargetNetwork(self._critic, every=0, tau=config.tau)
        self._head = build_value_head(config)
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        self._target_entropy = -float(self._action_size) if config.target_entropy is None else config.target_entropy
        self._mean_priority = MeanPriority(device)
        betas = (config.adam_beta1, 0.999)
        self._actor_optimizer = Adam(trained_parameters(self._actor), config.learning_rate, betas)
        self._critic_optimizer = Adam(trained_parameters(self._critic), config.learning_rate, betas)
        self._temperature_optimizer = Adam([self._log_temperature], config.learning_rate, betas)
        self._noise = torch.Generator(device).manual_seed(seed)
        networks: dict[str, nn.Module] = {"actor": self._actor, "critic": self._critic}
        if self._target is not None:
            networks["target"] = self._target.network
        if config.actor_ema_decay:
            networks["average"] = self._average.network
        self._normalizer = ReplayNormalizer(config, networks.values(), self._items.sequences).to(device)
        networks |= self._normalizer.modules_by_name
        self._state = TrainState(
            networks,
            {
                "actor_optimizer": self._actor_optimizer,
                "critic_optimizer": self._critic_optimizer,
                "temperature_optimizer": self._temperature_optimizer,
            },
            self._noise,
            tensors={"log_temperature": self._log_temperature, "mean_priority": self._mean_priority.mean},
        )
        decay = LearningRateDecay(
            self._state.optimizers.values(),
            config.learning_rate_decay_updates,
            config.learning_rate_final,
            on_device=config.compile != "none",
        )
        self._run_update = recorded(self._updated, config.compile, device, self._state, decay)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions, or sequences of a recurrent agent; see `tidemill.rl.agents.items`."""
        return self._items.decode(columns, index)

    @torch.no_grad()
    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Update critics, then every `policy_delay` updates actor and temperature, then the target."""
        kind = self._updates_actor, self._renorm_bounds, self._state.is_measured
        return self._run_update(batch, weight, kind)

    @property
    def _updates_actor(self) -> bool:
        return self._state.updates % self._config.policy_delay == 0

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        batch = self._normalizer.counted(batch, weight, self._state.group)
        learned = self._items.transitions(batch, weight)
        shape = (2, len(learned.weight), self._action_size)
        noise = draw_normal(shape, self._state.group, self._noise, weight.device, dim=1)
        temperature = self._log_temperature.exp()
        priority, metrics = self._update_critic(learned, batch, noise[0], temperature)
        if self._updates_actor:
            metrics |= self._update_actor(learned, noise[1], temperature)
        self._move_averages()
        return Update(priority, metrics | {"temperature": temperature})

    def _update_critic(
        self, learned: Transitions, batch: Mapping[str, Tensor], noise: Tensor, temperature: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        weight = learned.weight
        drawn = sample(self._actor(learned.bootstrap_observation)[0], noise)
        activations, bootstrap = self._criticise(learned, drawn.action)
        output = activations[-1].output[:, : len(weight)]
        target = soft_target(
            n_step_return=learned.n_step_return,
            bootstrap_discount=learned.bootstrap_discount,
            kept=self._head.kept(bootstrap),
            log_prob=drawn.log_prob,
            temperature=temperature,
        )
        gradient, td_error = self._head.gradient(output, target, weight)
        if self._target is None:  # no gradient at the second half, where targets come from
            gradient = functional.pad(gradient, (0, 0, 0, len(weight)))
        priority = self._items.priority(td_error, batch)
        mean_priority = priority.mean()
        gradients = self._step(self._critic, self._critic_optimizer, activations, gradient, mean_priority)
        self._mean_priority.update(gradients.pop())
        metrics = {"td_error": mean_priority, "q": output.mean()}
        if self._state.is_measured:
            metrics["loss"] = self._head.loss(output, target, weight)
            metrics["critic_grad_norm"] = global_norm(gradients)
        return priority, metrics

    def _criticise(self, learned: Transitions, next_action: Tensor) -> tuple[list[LayerActivations], Tensor]:
        """Evaluate the critics: activations at each transition's start, and values of its end, [C, B, K].

        With CrossQ they see both ends in one pass, [C, 2 B, K], whose second half are the values of the end.
        """
        observation, action, next_observation = learned.observation, learned.action, learned.bootstrap_observation
        if self._target is not None:
            return self._critic.activations(observation, action), self._target.network(next_observation, next_action)
        assert isinstance(observation, Tensor), "CrossQ is not recurrent"
        assert isinstance(next_observation, Tensor), "CrossQ is not recurrent"
        both = torch.cat((observation, next_observation)), torch.cat((action, next_action))
        activations = self._critic.activations(*both, self._renorm_bounds)
        return activations, activations[-1].output[:, len(action) :]

    @property
    def _renorm_bounds(self) -> RenormBounds | None:
        """How the networks that learn in this update normalise, if they do."""
        if not self._config.crossq:
            return None
        return BATCH_NORM if self._state.updates < self._config.crossq_warmup_updates else RENORM

    def _step(
        self,
        network: EnsembleMLP,
        optimizer: Adam,
        activations: list[LayerActivations],
        gradient: Tensor,
        also: Tensor,
    ) -> list[Tensor]:
        """Step down the gradient of a network's output; return those of its parameters, and `also`, of all ranks.

        Each rank renormalises by its own part of a batch; the running statistics follow the mean over ranks.
        """
        parameters = laid_as(optimizer.parameters, network.parameter_gradients(activations, gradient))
        statistics = network.batch_statistics(activations)
        averaged = self._state.group.mean([*parameters, *statistics, also])
        gradients = averaged[: len(parameters)]
        optimizer.step(gradients)
        network.track(averaged[len(parameters) : -1])
        return [*gradients, averaged[-1]]

    def _update_actor(self, learned: Transitions, noise: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        activations = self._actor.activations(learned.observation, bounds=self._renorm_bounds)
        drawn = sample(activations[-1].output[0], noise)
        critic_activations = self._critic.activations(learned.observation, drawn.action)
        q_gradient = self._head.actor_gradient(critic_activations[-1].output)
        actions = drawn.action.shape[1]
        action_gradient = self._critic.input_gradient(critic_activations, q_gradient, last=actions).sum(dim=0)
        gradient = learned.counted(head_gradient(drawn, action_gradient, temperature / len(noise))).unsqueeze(0)
        entropy = -drawn.log_prob.mean()
        surplus = entropy - self._target_entropy
        if learned.counts is not None:
            surplus = -learned.counted(drawn.log_prob + self._target_entropy).mean()
        gradients = self._step(self._actor, self._actor_optimizer, activations, gradient, surplus)
        surplus = gradients.pop()
        if self._config.temperature == "learned":
            self._temperature_optimizer.step([surplus])
        metrics = {"entropy": entropy}
        if self._state.is_measured:
            metrics["actor_grad_norm"] = global_norm(gradients)
        return metrics

    def _move_averages(self) -> None:
        if self._target is not None:
            self._target.update(self._critic_optimizer.parameters, self._state.updates)
        if self._config.actor_ema_decay:
            self._average.update(self._actor_optimizer.parameters, self._state.updates)
            # no pass of the average moves them; a module may have put others in their place
            for average, own in zip(self._average.network.buffers(), self._actor.buffers(), strict=True):
                average.copy_(own)

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the actor's parameters, `actor.*`, and of its average's if any, `average.*`.

        With them goes `initial_priority`, what an item is worth before its first update: the critics that would know
        are not sent.
        """
        networks = self._state.copy_of("actor", *(("average",) if self._config.actor_ema_decay else ()))
        return networks | self._mean_priority.published()


class SACPolicy:
    """Samples from the actor to explore; acts by its mean, or its average's, to be evaluated."""

    priority_uses_params = True

    def __init__(self, config: SACConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._config = config
        self.recurrent_state_size = config.recurrent_state_size
        self._action_shape = env_spec.action_shape
        self._device = context.device
        rng = torch.Generator().manual_seed(context.seed)
        self._actor = build_actor(config, env_spec, rng).to(context.device).requires_grad_(False).eval()
        self._evaluated = self._actor
        if config.actor_ema_decay:
            self._evaluated = build_actor(config, env_spec, rng).to(context.device).requires_grad_(False).eval()
        self._rng = np.random.default_rng(context.seed)
        self._noise_rng = torch.Generator(context.device).manual_seed(context.seed)
        self._noise: Tensor | None = None  # of the last step, [N, A]
        self._new_item_priority = NewItemPriority()
        self._rewards, self._slot = ActedRewards(config), context.slot
        self._held = HeldActions(config.hold_probability, config.hold_steps, np.random.default_rng(context.seed + 1))

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
            output = self._output(self._evaluated, policy_input)
            mean_action = mode(output["head"]).cpu().numpy()
            return PolicyOutput(
                mean_action.reshape(len(policy_input), *self._action_shape), recurrent_state=remembered(output)
            )
        is_random = env_steps < self._config.start_steps and not self.recurrent_state_size
        return self.choose(policy_input, {} if is_random else self.forward(policy_input), env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Compute `head`, the numbers that give the actor's mean and standard deviation, [N, 2 A].

        Of a recurrent actor also the next `recurrent_state`, [N, 2 H].
        """
        return self._output(self._actor, policy_input)

    def _output(self, actor: EnsembleMLP, policy_input: PolicyInput) -> dict[str, Tensor]:
        output = one_step(actor, policy_input, self._device)
        output["head"] = output.pop("output")[0]
        return output

    @torch.inference_mode()
    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then samples; see `act`."""
        recurrent_state, extras = remembered(output), dict[str, Array](self._rewards.extras(policy_input))
        shape = (len(policy_input), *self._action_shape)
        if env_steps < self._config.start_steps:
            action = self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        else:
            action = self._explored(output["head"], policy_input.is_first).reshape(shape)
        return PolicyOutput(action if taken is None else taken, recurrent_state=recurrent_state, extras=extras)

    def _explored(self, head: Tensor, is_first: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return samples, [N, A], and the random actions that environments hold."""
        mean, log_std = split(head)
        noise = self._next_noise(mean.shape, is_first)
        quiet = self._slot.first_of(self._config.greedy_fraction, len(mean))
        noise[:quiet] = 0.0
        action: NDArray[np.float32] = torch.tanh(torch.addcmul(mean, log_std.exp(), noise)).cpu().numpy()
        if self._config.hold_probability:
            action = self._held.replace(action, np.arange(len(action)) >= quiet, is_first)
        return action

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


build_agent = SACAgent
build_policy = SACPolicy
