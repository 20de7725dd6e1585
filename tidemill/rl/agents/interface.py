"""What a learner asks of an agent, and an actor or evaluator of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.rl.exploration import ActorPlace
from tidemill.rl.percept import Percept
from tidemill.types import WindowSpec

if TYPE_CHECKING:  # decoder threads and torch-free processes may import this module
    import torch
    from torch import Tensor

    from tidemill.rl.networks.precision import Precision
    from tidemill.rl.ranks import Ranks

Array = NDArray[Any]

State = dict[str, Any]
"""A nested dict whose leaves are tensors, ints, floats and strings only."""


class Update(NamedTuple):
    """What one update reports; nothing in it has been copied to the host.

    Attributes:
        priority: New priorities of the batch's items, float32 [B], on the agent's device.
        metrics: Scalars by name, float32 [], on the agent's device.
    """

    priority: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class Decision:
    """What a policy decided for one tick of N environments.

    Attributes:
        action: int64 [N], or float32 [N, *action_shape] in [-1, 1].
        priority_inputs: Columns, each [N, ...], that `Policy.first_priority` wants back for this tick.
        memory: What the policy wants to find in its next percept, float32 [N, memory_size]; None if that is 0.
    """

    action: Array
    priority_inputs: dict[str, Array] = field(default_factory=dict)
    memory: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Acting:
    """Where and how a policy acts.

    Attributes:
        device: What its network computes on.
        seed: Of its exploration, and of its parameters until the first `load`.
        place: Which environments of the cluster it acts in.
        precision: Number format of an image network's forward pass.
    """

    device: torch.device
    seed: int = 0
    place: ActorPlace = field(default_factory=ActorPlace)
    precision: Precision = "float32"


class Agent(Protocol):
    """Owns networks and optimizers; computes updates. One thread at a time, except `decode`."""

    @property
    def window(self) -> WindowSpec:
        """Steps of a stream that an item of this agent covers."""

    @property
    def memory_size(self) -> int:
        """Numbers that its policy remembers of each environment, `Policy.memory_size`: every item brings as many."""

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return the batch that `update` wants, as arrays, from rows of streams; safe on any thread.

        Args:
            columns: Rows of the streams, each [R, ...].
            index: Rows of each item, [B, window.length], padded at a stream's start with its first row.
        """

    def join(self, ranks: Ranks) -> None:
        """Make every further update together with the same agent of the other ranks, each from its share."""

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Make one update; waits for nothing on the device.

        Args:
            batch: What `decode` returned, on the agent's device; and for a policy that remembers, `memory`, what it
                remembered when it first acted in each item, float32 [B, memory_size].
            weight: Importance weights, float32 [B].
        """

    def policy_state(self) -> dict[str, Tensor]:
        """Return copies of the tensors that `Policy.load` wants, on the agent's device."""

    def state_dict(self) -> State:
        """Return all that is needed to go on exactly.

        Its tensors are the agent's own: store or copy them before the next update.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; raises InvalidArgument if it does not fit."""


class Policy(Protocol):
    """Chooses actions. What it remembers of an episode is in the percept, not in the policy."""

    @property
    def memory_size(self) -> int:
        """Numbers it remembers of each environment from one tick to the next; 0 for a policy that only looks."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the parameters that `Agent.policy_state` returned."""

    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Choose actions to learn from; `env_steps` is the whole cluster's count, which schedules follow."""

    def greedy(self, percept: Percept) -> Decision:
        """Choose the actions thought best, without any randomness."""

    def first_priority(self, ticks: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the first priorities of K windows, [K], each of which starts at the oldest of its ticks.

        Args:
            ticks: `reward`, `terminated`, `truncated`, `was_reset` and every column of `Decision.priority_inputs`
                of the `window.steps + 1` rows of each window, each [steps + 1, K, ...], oldest first.
        """
