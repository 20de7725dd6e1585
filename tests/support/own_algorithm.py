"""An algorithm as a user writes one, all of it in a module: it learns a constant, and stores a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill.arrays import Array
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.registry import require_actions
from tidemill.types import ColumnSpec, EnvSpec, Signature, WindowSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tidemill.rl.agents.interface import PolicyContext, Update


@dataclass(frozen=True)
class OwnConfig:
    """Its settings."""

    algorithm: str = f"{__name__}:OwnConfig"
    batch_size: int = 4
    layers: list[int] = field(default_factory=lambda: [8, 8])

    def window(self, frame_stack: int) -> WindowSpec:
        """Return those of the stack, and one transition."""
        return WindowSpec(history=frame_stack - 1, steps=1)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Refuse continuous actions."""
        require_actions(self.algorithm, env_spec, discrete=True)

    def extra_columns(self, env_spec: EnvSpec) -> Signature:
        """Return the log-probability of the action."""
        return (ColumnSpec("log_prob", "float32", ()),)

    def build_agent(self, env_spec: EnvSpec, device: torch.device, seed: int) -> OwnAgent:
        """Return the learner's side."""
        return OwnAgent(self, env_spec)

    def build_policy(self, env_spec: EnvSpec, context: PolicyContext) -> OwnPolicy:
        """Return the acting side."""
        return OwnPolicy()


class OwnAgent:
    """One number."""

    recurrent_state_size = 0

    def __init__(self, config: OwnConfig, env_spec: EnvSpec) -> None:
        import torch

        self.window, self._frame_stack = config.window(env_spec.frame_stack), env_spec.frame_stack
        self._mean = torch.zeros(())

    def decode(self, columns: Mapping[str, Array], index: Array) -> dict[str, Any]:
        """Return one-step transitions."""
        from tidemill.rl.transitions import transitions

        return transitions(columns, index, self._frame_stack, steps=1, gamma=0.9)

    def set_process_group(self, group: object) -> None:
        """Take no notice: every rank sees enough."""

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Move towards the rewards."""
        from tidemill.rl.agents.interface import Update

        error = weight * (batch["n_step_return"] - self._mean)
        self._mean += 0.1 * error.mean()
        return Update(error.abs(), {"loss": error.square().mean()})

    def policy_state(self) -> dict[str, Tensor]:
        """Return the number."""
        return {"mean": self._mean.clone()}

    def state_dict(self) -> dict[str, Any]:
        """Return all there is."""
        return {"mean": self._mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self._mean.copy_(state["mean"])


class OwnPolicy:
    """The first action, always."""

    recurrent_state_size = 0

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take what has no effect."""

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return zeros [N]."""
        count = len(policy_input)
        return PolicyOutput(np.zeros(count, np.int64), extras={"log_prob": np.zeros(count, np.float32)})

    def initial_priority(self, steps: Mapping[str, Array]) -> Array:
        """Return 1 for each window, [K]."""
        return np.ones(steps["reward"].shape[1], np.float32)
