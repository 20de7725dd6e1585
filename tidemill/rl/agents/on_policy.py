"""What the algorithms that learn from fresh rollouts share: their items, their batches and their policy.

An item is `unroll` transitions of one stream and the row after them, whose observation is bootstrapped from. The next
item starts after that row, so that each is acted by one version of the parameters, and none waits for a version that
cannot come before it is learned from ([ADR 0040](../../../docs/adr/0040-on-policy-pacing.md)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.networks.actor_critic import ActionDistribution, ActorCritic, ActorCriticSettings, build_actor_critic
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.transitions import unrolled_transitions
from tidemill.types import ACTION_MASK, EnvSpec, WindowSpec

LOG_PROB = "log_prob"
"""The extra column: the log-probability, by the policy that acted, of the action that it took."""


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
        What `unrolled_transitions` does, with the action masks where there are some, and `is_trained`, bool [B, U]:
        False for a final observation step, whose action the environment ignored.
    """
    before, rows = index[:, window.history - 1 : -2], index[:, window.history : -1]
    ended = (columns["terminated"] | columns["truncated"])[before]
    # at a stream's start the row before is the first row itself: it begins an episode, or is trained on
    is_final = ended & ~columns["is_first"][rows] & (before != rows)
    seen = index[:, window.history - frame_stack + 1 :]
    extras = (*extras, ACTION_MASK) if ACTION_MASK in columns else extras
    batch = unrolled_transitions(columns, seen, frame_stack, window.steps, gamma, extras=extras)
    return batch | {"is_trained": ~is_final}


class Rollout(NamedTuple):
    """A batch with time first: observations and action masks of T + 1 steps, all else of T, [T, B, ...]."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    discount: Tensor
    continues: Tensor
    is_trained: Tensor
    action_mask: Tensor | None = None

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Rollout:
        """Return the rollout of a batch that `rollouts` made."""
        columns = {name: batch[name].transpose(0, 1) for name in cls._fields if name in batch}
        columns |= {name: columns[name][:-1] for name in ("action", LOG_PROB)}
        return cls(**columns)


class ActorCriticPolicy:
    """Draws actions, and reports how likely each was; in evaluation it takes the most likely."""

    recurrent_state_size = 0
    priority_uses_params = False

    def __init__(self, settings: ActorCriticSettings, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._network = build_actor_critic(settings, env_spec, context.seed).to(context.device).requires_grad_(False)
        self._network.eval()
        self._action_shape, self._device = env_spec.action_shape, context.device
        self._rng = torch.Generator(context.device).manual_seed(context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return actions drawn from the policy and their log-probabilities; in evaluation its modes."""
        output = self.forward(policy_input)
        if evaluation:
            return PolicyOutput(self._shaped(self._distribution(policy_input, output).mode()))
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:  # noqa: ARG002 - the interface's
        """Return the policy's numbers as `head`, [N, ...], and of a Gaussian its `log_std`, [N, A]."""
        observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        head = self._network.policy_head(observation)
        log_std = self._network.log_std
        return {"head": head} if log_std is None else {"head": head, "log_std": log_std.expand_as(head)}

    @torch.inference_mode()
    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:  # noqa: ARG002 - the interface's
        """Return actions drawn from the policy and their log-probabilities."""
        distribution = self._distribution(policy_input, output)
        action = distribution.sample(self._rng)
        return PolicyOutput(self._shaped(action), extras={LOG_PROB: distribution.log_prob(action).cpu().numpy()})

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
