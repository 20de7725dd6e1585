"""Common parts of the deterministic policy gradients DDPG, TD3 and D4PG: actor, critic and their targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array
from tidemill.rl.action_noise import ActionNoise
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.items import Items, SingleTransitions
from tidemill.rl.agents.normalizer import ActedRewards, ReplayNormalizer
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.mean_priority import MeanPriority, NewItemPriority
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.recurrent import one_step, remembered
from tidemill.rl.optimizers import Adam, LearningRateDecay, global_norm, trained_parameters
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.returns import n_step
from tidemill.rl.settings.deterministic import DeterministicSettings
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainedAgent, TrainState, subdict
from tidemill.types import EnvSpec

Learn = Callable[[Mapping[str, Tensor], Tensor], Update]
"""`Agent.update` of one algorithm: what distinguishes it from the others."""

TDErrorFn = Callable[[Mapping[str, Tensor]], Tensor]
"""How far the networks are from their own targets on a batch such as `Agent.update` takes, [B]."""


class ActorCritic:
    """An actor, a critic, a target that follows each of them, and an optimizer of each."""

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        settings: DeterministicSettings,
        *,
        critic_weight_decay: float = 0.0,
        target_update_period: int = 0,
        noise: torch.Generator | None = None,
        mean_priority: MeanPriority | None = None,
    ) -> None:
        """Copy both networks to their targets.

        Args:
            actor: From observations [B, O] to actions [B, A].
            critic: Values actions.
            settings: The algorithm's.
            critic_weight_decay: L2 penalty of the critic, per unit of weight.
            target_update_period: Updates between two copies to the targets; 0 moves them by `settings.tau` instead.
            noise: Draws what updates need; None if they draw nothing.
            mean_priority: What new items are worth, if actors cannot find that out.
        """
        self.actor = actor
        self.critic = critic
        self._actor_optimizer = Adam(trained_parameters(actor), settings.actor_learning_rate)
        self._critic_optimizer = Adam(
            trained_parameters(critic), settings.critic_learning_rate, weight_decay=critic_weight_decay
        )
        self._actor_target = TargetNetwork(actor, target_update_period, settings.tau)
        self._critic_target = TargetNetwork(critic, target_update_period, settings.tau)
        self.target_actor = self._actor_target.network
        self.target_critic = self._critic_target.network
        self.state = TrainState(
            {"actor": actor, "critic": critic, "target_actor": self.target_actor, "target_critic": self.target_critic},
            {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic_optimizer},
            noise,
            tensors={} if mean_priority is None else {"mean_priority": mean_priority.mean},
        )
        self.mean_priority = mean_priority
        self._grad_norms: dict[str, Tensor] = {}

    def update_critic(self, loss: Tensor, priority: Tensor | None = None) -> None:
        """Take one step of the critic down the gradient of its loss, []; `priority`, [B], enters the mean priority."""
        if self.mean_priority is None or priority is None:
            gradients = self._critic_optimizer.minimize(loss, self.state.group)
        else:
            gradients = self._critic_optimizer.minimize(loss, self.state.group, [priority.mean()])
            self.mean_priority.update(gradients.pop())
        self._measure("critic_grad_norm", gradients)

    def update_actor(self, loss: Tensor) -> None:
        """Take one step of the actor down the gradient of its loss, [], which the critic's parameters do not follow."""
        self._measure("actor_grad_norm", self._actor_optimizer.minimize(loss, self.state.group))

    def take_grad_norms(self) -> dict[str, Tensor]:
        """Return the norms of this update's gradients, each [], if it is one that is measured."""
        taken, self._grad_norms = self._grad_norms, {}
        return taken

    def _measure(self, name: str, gradients: list[Tensor]) -> None:
        if self.state.is_measured:
            self._grad_norms[name] = global_norm(gradients)

    def targets_are_due(self) -> bool:
        """True if `update_targets` would move the target networks."""
        return self._actor_target.is_due(self.state.updates + 1)

    def update_targets(self) -> None:
        """Move both targets, if it is time."""
        update = self.state.updates + 1
        self._actor_target.update(self._actor_optimizer.parameters, update)
        self._critic_target.update(self._critic_optimizer.parameters, update)


class DeterministicAgent(TrainedAgent):
    """Makes the updates of one of the algorithms, and keeps what they need."""

    def __init__(
        self,
        networks: ActorCritic,
        learn: Learn,
        settings: DeterministicSettings,
        env_spec: EnvSpec,
        *,
        policy_delay: int = 1,
        items: Items | None = None,
        recurrent_state_size: int = 0,
    ) -> None:
        """Put the parts together.

        Args:
            networks: What learns.
            learn: Makes one update of them, which is counted afterwards.
            settings: Of the algorithm.
            env_spec: Shapes of the environment.
            policy_delay: Updates from one that `learn` makes of the actor to the next.
            items: What the table's items are; None: single transitions.
            recurrent_state_size: Numbers that the actor remembers of each environment.
        """
        self.window = settings.window(env_spec.frame_stack)
        self._networks = networks
        self._state = networks.state
        device = next(networks.actor.parameters()).device
        self._items = items or SingleTransitions(settings, env_spec.frame_stack)
        self._normalizer = ReplayNormalizer(settings, self._state.networks.values(), self._items.sequences).to(device)
        self._state.networks = {**self._state.networks, **self._normalizer.modules_by_name}
        self._learn = learn
        self.observation_columns = self._items.observation_columns
        self.recurrent_state_size = recurrent_state_size
        self._policy_delay = policy_delay
        recording = settings.compile == "cuda-graphs"
        optimizers = self._state.optimizers.values()
        decay = LearningRateDecay(optimizers, settings.learning_rate_decay_updates, on_device=recording)
        self._run_update = recorded(self._updated, settings.compile, device, self._state, decay)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions, or sequences of a recurrent agent; see `tidemill.rl.agents.items`."""
        return self._items.decode(columns, index)

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make one update."""
        updates_actor = self._state.updates % self._policy_delay == 0
        kind = updates_actor, self._networks.targets_are_due(), self._state.is_measured
        return self._run_update(batch, weight, kind)

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        update = self._learn(self._normalizer.counted(batch, weight, self._state.group), weight)
        update.metrics.update(self._networks.take_grad_norms())
        return update

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the parameters: `actor.*`, and for initial priorities their mean, or `critic.*`.

        With `critic.*` goes the scale of rewards.
        """
        if self._networks.mean_priority is not None:
            return self._state.copy_of("actor") | self._networks.mean_priority.published()
        return self._state.copy_of("actor", "critic") | self._normalizer.published()


class DeterministicPolicy:
    """Acts by the actor; adds noise to its actions to explore."""

    priority_uses_params = True

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module | None,
        td_error_fn: TDErrorFn | None,
        settings: DeterministicSettings,
        action_shape: tuple[int, ...],
        context: PolicyContext,
        recurrent_state_size: int = 0,
    ) -> None:
        """Put the parts together.

        Args:
            actor: Maps observations [B, ...] to flat actions [B, A]; this object then owns it.
            critic: Values actions, for initial priorities; this object then owns it. None: a new item has the mean
                priority that comes with the parameters.
            td_error_fn: Gives initial priorities, by these two networks; None without a critic.
            settings: The algorithm's.
            action_shape: Shape of one action.
            context: Where it acts, and the seed of the noise.
            recurrent_state_size: Numbers that the actor remembers of each environment.
        """
        self._actor = actor.to(context.device).requires_grad_(False).eval()
        self._critic = None if critic is None else critic.to(context.device).requires_grad_(False).eval()
        self._td_error_fn = td_error_fn
        self._new_item_priority = NewItemPriority()
        self.recurrent_state_size = recurrent_state_size
        self._gamma = settings.gamma
        self._rewards = ActedRewards(settings)
        self._start_steps = settings.start_steps
        self._action_shape = action_shape
        self._device = context.device
        self._noise = ActionNoise(settings.noise, context.seed, context.slot)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `actor.*`, and `critic.*` or the mean priority; and the scale of rewards if it is there."""
        self._rewards.load(state)
        self._actor.load_state_dict(subdict("actor", state))
        self._new_item_priority.load(state)
        if self._critic is not None:
            self._critic.load_state_dict(subdict("critic", state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then the actor's with noise; in evaluation without noise.

        Initial priorities want back what was seen and what was done.
        """
        if evaluation:
            output = self.forward(policy_input)
            action = self._shaped(output["action"].cpu().numpy())
            return PolicyOutput(action, recurrent_state=remembered(output))
        is_random = env_steps < self._start_steps and not self.recurrent_state_size
        return self.choose(policy_input, {} if is_random else self.forward(policy_input), env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the actor's actions without noise as `action`, [N, A]; if it is recurrent also `recurrent_state`."""
        output = one_step(self._actor, policy_input, self._device)
        output["action"] = output.pop("output")
        return output

    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return uniform actions for the first `start_steps`, then the actor's with noise; see `act`."""
        if env_steps < self._start_steps:
            flat_action = self._noise.uniform((len(policy_input), math.prod(self._action_shape)))
        else:
            flat_action = self._noise.add_noise(output["action"].cpu().numpy(), policy_input.is_first)
        action = self._shaped(flat_action) if taken is None else taken
        extras = dict[str, Array](self._rewards.extras(policy_input))
        if self._critic is None:
            return PolicyOutput(action, recurrent_state=remembered(output), extras=extras)
        # not by the names of stored columns, which have single observations
        seen = np.array(policy_input.observation)  # a stack of frames is written over before the writer asks
        inputs = {"seen_observation": seen, "taken_action": action}
        return PolicyOutput(action, inputs, remembered(output), extras)

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest step, [K].

        It is exact while networks and targets are equal to these and updates draw no noise (Horgan et al. 2018,
        section 3). Without a critic it is what items were lately worth to the learner.
        """
        if self._td_error_fn is None:
            return self._new_item_priority.of(steps["reward"].shape[1])
        reward, terminated, truncated = (steps[name][:-1].T for name in ("reward", "terminated", "truncated"))
        target = n_step(reward, terminated, truncated, self._gamma)
        arrays = {
            "observation": steps["seen_observation"][0],
            "action": steps["taken_action"][0],
            "n_step_return": self._rewards.scaled(target.return_),
            "bootstrap_discount": target.discount,
            "bootstrap_observation": steps["seen_observation"][target.bootstrap_index, np.arange(len(target.return_))],
        }
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for name, array in arrays.items()}
        priority: NDArray[np.float32] = self._td_error_fn(batch).cpu().numpy()
        return priority

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actor's actions."""
        return EvaluationNetwork(self._actor, lambda actor, seen: actor(seen).reshape(-1, *self._action_shape))

    def _shaped(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        return action.reshape(len(action), *self._action_shape)
