"""Interfaces of an agent, for a learner, and of a policy, for an actor or evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.types import EnvSpec, WindowSpec

if TYPE_CHECKING:  # decoder threads and torch-free processes may import this module
    import torch
    from torch import Tensor

    from tidemill.rl.networks.precision import Precision
    from tidemill.rl.process_group import ProcessGroup


State = dict[str, Any]
"""A nested dict that a checkpoint can hold; see `Tree` in `tidemill.rl.state_tree`."""


class Update(NamedTuple):
    """Report of one update; nothing in it has been copied to the host.

    Attributes:
        priority: New priorities of the batch's items, float32 [B], on the agent's device.
        metrics: Scalars by name, float32 [], on the agent's device.
    """

    priority: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class PolicyContext:
    """Circumstances in which a policy acts.

    Attributes:
        device: What its network computes on.
        seed: Of its exploration, and of its parameters until the first `load`.
        slot: Which environments of the cluster it acts in.
        precision: Number format of an image network's forward pass.
    """

    device: torch.device
    seed: int = 0
    slot: ActorSlot = field(default_factory=ActorSlot)
    precision: Precision = "float32"


def observation_columns_of(agent: Agent) -> tuple[str, ...]:
    """Return the columns of an agent's batches that are observations as they are stored, taken row by row.

    An agent says so by an attribute `observation_columns`: its `decode` then does nothing with observations but take
    rows of them, so that the learner may let it take the numbers of rows, and keep the observations on the GPU, or
    decode no others than those. () promises nothing.
    """
    return tuple(getattr(agent, "observation_columns", ()))


def sees_rewards(policy: Policy) -> bool:
    """Return True if the actions of a policy depend on the rewards of an episode so far.

    A policy may have an attribute `sees_rewards` that says so. Without it recurrent policies count as such.
    """
    return bool(getattr(policy, "sees_rewards", policy.recurrent_state_size))


class Agent(Protocol):
    """Owns networks and optimizers; computes updates. One thread at a time, except `decode`.

    Example:
        >>> import numpy as np
        >>> import tidemill
        >>> import torch
        >>> config = tidemill.load_config({"agent": {"algorithm": "dqn", "network": "mlp", "n_step": 1}}).agent
        >>> spec = tidemill.EnvSpec(observation_shape=(2,), observation_dtype="float32", num_actions=3)
        >>> agent = tidemill.build_agent(config, spec, seed=1)
        >>> rows = {"observation": np.zeros((9, 2), np.float32), "action": np.zeros(9, np.int64)}
        >>> rows |= {"reward": np.ones(9, np.float32), "is_first": np.zeros(9, bool)}
        >>> rows |= {"terminated": np.zeros(9, bool), "truncated": np.zeros(9, bool)}
        >>> index = np.array([[0, 1], [4, 5], [7, 8]])  # three items of two steps
        >>> batch = {name: torch.from_numpy(column) for name, column in agent.decode(rows, index).items()}
        >>> update = agent.update(batch, weight=torch.ones(3))
        >>> update.priority.shape, sorted(update.metrics)
        (torch.Size([3]), ['grad_norm', 'loss', 'q'])
    """

    @property
    def window(self) -> WindowSpec:
        """Steps of a stream that an item of this agent covers."""

    @property
    def recurrent_state_size(self) -> int:
        """`Policy.recurrent_state_size` of its policy: every item brings as many numbers."""

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return the batch that `update` wants, as arrays, from rows of streams; safe on any thread.

        Args:
            columns: Rows of the streams, each [R, ...]: every column that is stored, those of the algorithm's own too.
                They may be written over later: what is returned must be copies, as indexing with an array makes.
            index: Rows of each item, [B, window.length], padded at a stream's start with its first row.
        """

    def set_process_group(self, group: ProcessGroup) -> None:
        """Make every further update with the same agent of the other ranks, each from its part of the batch."""

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make one update; waits for nothing on the device.

        Args:
            batch: What `decode` returned, on the agent's device; for a recurrent policy also `recurrent_state`, with
                which it first acted in each item, float32 [B, recurrent_state_size].
            weight: Importance weights, float32 [B].
        """

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the tensors that `Policy.load` wants, on the agent's device."""

    def state_dict(self) -> State:
        """Return all that is needed to resume exactly.

        Its tensors are the agent's own: store or copy them before the next update.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises InvalidArgument if it does not fit."""


class Policy(Protocol):
    """Chooses actions. Its recurrent state travels with its inputs and outputs, not in the policy.

    If it is recurrent and ignores rewards, set an attribute `sees_rewards = False`, so that `TrainedPolicy.act` does
    not demand them.

    Example:
        >>> import numpy as np
        >>> import tidemill
        >>> config = tidemill.load_config({"agent": {"algorithm": "sac"}}).agent
        >>> spec = tidemill.EnvSpec(observation_shape=(2,), observation_dtype="float32", action_shape=(1,))
        >>> policy = tidemill.build_policy(config, spec, seed=1)
        >>> policy.load(tidemill.build_agent(config, spec).policy_state())
        >>> seen = tidemill.PolicyInput(
        ...     observation=np.zeros((4, 2), np.float32),
        ...     is_first=np.ones(4, bool),
        ...     last_action=np.zeros((4, 1), np.float32),
        ...     last_reward=np.zeros(4, np.float32),
        ...     recurrent_state=np.zeros((4, policy.recurrent_state_size), np.float32),
        ... )
        >>> policy.act(seen, evaluation=True).action.shape
        (4, 1)
    """

    @property
    def recurrent_state_size(self) -> int:
        """Numbers of each environment's recurrent state; 0 for a policy without one."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the parameters that `Agent.policy_state` returned."""

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Choose one action for each environment.

        Args:
            policy_input: What the policy sees of N environments.
            env_steps: Agent decisions of the whole cluster so far, which schedules of exploration follow.
            evaluation: Whether to choose the actions thought best, without any randomness, instead of exploring.
        """

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the initial priorities of K windows, [K], each of which starts at the oldest of its steps.

        Args:
            steps: `reward`, `terminated`, `truncated`, `is_reset_step` and every column of
                `PolicyOutput.priority_inputs` of the `window.steps + 1` steps of each window, each
                [steps + 1, K, ...], oldest first.
        """


class NoiseRows(NamedTuple):
    """Noise source of some of a batch's environments.

    Attributes:
        rng: Draws it, on the network's device.
        rows: How many environments, which follow those of the source before.
    """

    rng: torch.Generator
    rows: int


@runtime_checkable
class SplitPolicy(Protocol):
    """A policy whose network another process may pass through, for the environments of several actors at once.

    While it explores, `act` is `choose` of what `forward` returned: all chance but the network's own noise, and all
    that is kept from one step to the next, is in `choose`.
    """

    @property
    def priority_uses_params(self) -> bool:
        """Whether `initial_priority` depends on loaded parameters, and not on outputs alone."""

    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Pass through the network; a row of the output depends on the same row of the input alone.

        Args:
            policy_input: What N environments see.
            noise: Where a noisy network's noise comes from, N rows in all; empty: from the policy's own generator.

        Returns:
            What `choose` needs, float32 [N, ...] each; a recurrent policy's next state is `recurrent_state`.
        """

    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Choose the actions to explore with, given what `forward` returned; see `Policy.act`.

        Args:
            policy_input: What N environments see.
            output: What `forward` returned.
            env_steps: Agent decisions of the whole cluster so far.
            taken: Actions that were taken by somebody else, [N, *action_shape]: they are what is "chosen", and
                `priority_inputs` are theirs. What is kept from one step to the next changes as if none were given.
        """


@runtime_checkable
class BuildsBothSides(Protocol):
    """Settings that build agent and policy themselves, as those of an algorithm that is named by `module:Class`."""

    def build_agent(self, env_spec: EnvSpec, device: torch.device, seed: int) -> Agent:
        """Return the learner's side."""

    def build_policy(self, env_spec: EnvSpec, context: PolicyContext) -> Policy:
        """Return the acting side."""
