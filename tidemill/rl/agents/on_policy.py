"""Common parts of the algorithms that learn from fresh rollouts: items, batches, the agent of an actor and a critic.

An item is `unroll` transitions of one stream and the row after them, whose observation is bootstrapped from. The next
item starts after that row, so that each is acted by one version of the parameters, and none waits for a version that
cannot come before it is learned from ([ADR 0040](../../../docs/adr/0040-on-policy-pacing.md)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.normalizer import ActedRewards, Normalizer
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.networks.actor_critic import IMPOSSIBLE, ActionDistribution, ActorCritic, build_actor_critic
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.layers.lstm import Recurrence
from tidemill.rl.networks.recurrent import remembered
from tidemill.rl.normalization import discounted_sums
from tidemill.rl.optimizers import Adam, LearningRateDecay, trained_parameters
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.settings.base import EARLIER_RETURN
from tidemill.rl.settings.on_policy import LOG_PROB, ActorCriticSettings
from tidemill.rl.train_state import TrainedAgent, TrainState
from tidemill.rl.transitions import unrolled_transitions
from tidemill.types import ACTION_MASK, EnvSpec, WindowSpec


def rollouts(
    columns: Mapping[str, Array],
    index: NDArray[np.int64],
    window: WindowSpec,
    frame_stack: int,
    gamma: float,
    extras: tuple[str, ...] = (LOG_PROB,),
) -> dict[str, Array]:
    """Return the rollouts of a batch of windows; see `unrolled_transitions` for the rows and most of the result.

    Args:
        columns: The rows of any number of streams, each [R, ...].
        index: Rows of each window, [B, window.length].
        window: How a window is divided.
        frame_stack: Observations the network sees at once.
        gamma: Discount of one step.
        extras: Columns of the algorithm's own to return as well.

    Returns:
        What `unrolled_transitions` does, with the action masks where there are some; `is_first`, bool [B, U + 1]: where
        episodes start; and `is_trained`, bool [B, U]: False for a final observation step, whose action the environment
        ignored.
    """
    before, rows = index[:, window.history - 1 : -2], index[:, window.history : -1]
    ended = (columns["terminated"] | columns["truncated"])[before]
    # at a stream's start the row before is the first row itself: it begins an episode, or is trained on
    is_final = ended & ~columns["is_first"][rows] & (before != rows)
    # an environment that failed: nothing is known of the row's action, and the next row begins an episode
    is_final |= (
        columns["is_first"][index[:, window.history + 1 :]] & ~(columns["terminated"] | columns["truncated"])[rows]
    )
    seen = index[:, window.history - frame_stack + 1 :]
    extras = (*extras, "is_first", *(name for name in (ACTION_MASK, EARLIER_RETURN) if name in columns))
    batch = unrolled_transitions(columns, seen, frame_stack, window.steps, gamma, extras=extras)
    batch["continues"][:, :-1] &= ~is_final[:, 1:]
    return batch | {"is_trained": ~is_final}


class Rollout(NamedTuple):
    """A batch with time first: observations, masks and recurrence of T + 1 steps, all else of T, [T, B, ...]."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    discount: Tensor
    continues: Tensor
    is_trained: Tensor
    action_mask: Tensor | None = None
    recurrence: Recurrence | None = None
    """Of a recurrent policy: where its episodes start, and what it remembered before the first step."""
    earlier_return: Tensor | None = None
    """Where rewards are normalized, see `EARLIER_RETURN`; of T + 1 steps."""

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Rollout:
        """Return the rollout of a batch that `rollouts` made."""
        columns: dict[str, Any] = {name: batch[name].transpose(0, 1) for name in cls._fields if name in batch}
        columns |= {name: columns[name][:-1] for name in ("action", LOG_PROB)}
        if "recurrent_state" in batch:
            columns["recurrence"] = Recurrence(batch["is_first"].transpose(0, 1), batch["recurrent_state"])
        return cls(**columns)


class RolloutNormalizer(Normalizer):
    """Statistics of rollouts, for observations and rewards of unit scale."""

    def __init__(self, settings: ActorCriticSettings, network: ActorCritic) -> None:
        """Count as the settings say; the network's standardization follows what is counted of observations."""
        super().__init__(settings, [network])
        self._network = (network,)  # not a module of this one

    def before_update(self, rollout: Rollout, weight: Tensor, group: ProcessGroup) -> None:
        """Count the discounted sum of the episode's rewards up to each transition, if rewards are normalized."""
        if self.returns is not None:
            assert rollout.earlier_return is not None, "the actor stores it"
            reward, earlier = rollout.reward * rollout.is_trained, rollout.earlier_return[0]
            # nothing continues behind the final observation step of an episode, which stands before that of the next
            continues = rollout.continues & rollout.is_trained
            sums = discounted_sums(reward, continues, earlier, self._gamma)
            self.returns.add(sums.flatten(), (rollout.is_trained * weight).flatten(), group)

    def after_update(self, rollout: Rollout, weight: Tensor, group: ProcessGroup) -> None:
        """Count the observations, if they are normalized, and let the network use what is known now.

        That is after the update, so that it saw what the policy that acted saw.
        """
        (network,) = self._network
        if self.observations is not None:
            features = network.torso(rollout.observation[:-1].flatten(0, 1)).float()
            self.count_features(features, (rollout.is_trained * weight).flatten(), group)


class ActorCriticAgent(TrainedAgent, ABC):
    """A policy and a value, one optimizer, and what is counted of rollouts; an algorithm adds its update."""

    observation_columns = ("observation",)

    def __init__(
        self,
        settings: ActorCriticSettings,
        env_spec: EnvSpec,
        device: torch.device,
        seed: int,
        noise: torch.Generator | None = None,
    ) -> None:
        """Build the parts.

        Args:
            settings: Of the algorithm.
            env_spec: Shapes of the environment.
            device: Where the network is.
            seed: Of its parameters.
            noise: Draws what updates need; None if they draw nothing.
        """
        self.window = settings.window(env_spec.frame_stack)
        self.recurrent_state_size = 2 * settings.lstm_size
        self.network = build_actor_critic(settings, env_spec, seed).to(device)
        self.network.set_update_format(settings, env_spec, device)
        self._frame_stack = env_spec.frame_stack
        self._gamma = settings.gamma
        learned = trained_parameters(self.network)
        self._optimizer = Adam(learned, settings.learning_rate, epsilon=settings.optimizer_epsilon)
        recording = settings.compile == "cuda-graphs"
        decay = LearningRateDecay([self._optimizer], settings.learning_rate_decay_updates, on_device=recording)
        self._normalizer = RolloutNormalizer(settings, self.network).to(device)
        networks = {"network": self.network, **self._normalizer.modules_by_name}
        self._state = TrainState(networks, {"optimizer": self._optimizer}, noise)
        self._run_update = recorded(self._updated, settings.compile, device, self._state, decay)

    @abstractmethod
    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make an update, which may be recorded (`tidemill.rl.agents.update_graph`)."""

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return rollouts; see `rollouts`."""
        return rollouts(columns, index, self.window, self._frame_stack, self._gamma)


class ActorCriticPolicy:
    """Draws actions, and reports how likely each was; in evaluation it takes the most likely.

    What a recurrent one remembers it keeps in its inputs.
    """

    priority_uses_params = False
    sees_rewards = False

    def __init__(self, settings: ActorCriticSettings, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._rewards = ActedRewards(settings)
        self._network = build_actor_critic(settings, env_spec, context.seed).to(context.device).requires_grad_(False)
        self._network.eval()
        self.recurrent_state_size = 2 * settings.lstm_size
        self._action_shape = env_spec.action_shape
        self._device = context.device
        self._rng = torch.Generator(context.device).manual_seed(context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return actions drawn from the policy and their log-probabilities; in evaluation its modes."""
        output = self.forward(policy_input)
        if evaluation:
            mode = self._distribution(policy_input, output).mode()
            return PolicyOutput(self._shaped(mode), recurrent_state=remembered(output))
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the policy's numbers as `head`, [N, ...], of a Gaussian `log_std`, [N, A], and what it remembers."""
        observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        head, recurrent_state = self._network.policy_head(observation, self._recurrence(policy_input))
        output = {"head": head}
        if (log_std := self._network.log_std) is not None:  # copied: `load` writes the next version in its place
            output["log_std"] = log_std.expand_as(head).clone()
        return output if recurrent_state is None else output | {"recurrent_state": recurrent_state}

    def _recurrence(self, policy_input: PolicyInput) -> Recurrence | None:
        """Return the recurrent inputs of one step of N environments."""
        if not self.recurrent_state_size:
            return None
        is_first = torch.from_numpy(policy_input.is_first[None]).to(self._device)
        return Recurrence(is_first, torch.from_numpy(policy_input.recurrent_state).to(self._device))

    @torch.inference_mode()
    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return actions drawn from the policy and their log-probabilities.

        An action that was taken by somebody else counts as the policy's own, since nothing says how likely it was. It
        often is: a simulator that continues its episode at a restarted service repeats what the policy chose.

        Raises:
            InvalidArgument: An action that was taken is not legal, so the policy cannot learn from it.
        """
        distribution = self._distribution(policy_input, output)
        if taken is None:
            action = distribution.sample(self._rng)
        else:
            action = torch.from_numpy(np.ascontiguousarray(taken)).to(self._device)
        log_prob = distribution.log_prob(action)
        if taken is not None and policy_input.action_mask is not None and bool((log_prob < IMPOSSIBLE / 2).any()):
            raise InvalidArgument(f"action is {taken.tolist()}, which the action mask forbids: report a legal one")
        extras = {LOG_PROB: log_prob.cpu().numpy(), **self._rewards.extras(policy_input)}
        return PolicyOutput(self._shaped(action), recurrent_state=remembered(output), extras=extras)

    def _distribution(self, policy_input: PolicyInput, output: Mapping[str, Tensor]) -> ActionDistribution:
        mask = policy_input.action_mask
        legal = None if mask is None else torch.from_numpy(mask).to(self._device)
        return self._network.with_legal(output["head"], legal, output.get("log_std"))

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the modes of the policy."""

        def choose(network: nn.Module, seen: Tensor) -> Tensor:
            return cast(ActorCritic, network).distribution(seen).mode().reshape(-1, *self._action_shape)

        return EvaluationNetwork(self._network, choose)

    def _shaped(self, action: Tensor) -> Array:
        array: Array = action.cpu().numpy()
        return array.reshape(len(array), *self._action_shape)

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return 1 for each window: each is used once, in the order they came."""
        return np.ones(steps["reward"].shape[1], dtype=np.float32)
