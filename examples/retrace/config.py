"""Settings of Retrace. Imports no torch: every process reads them, the launcher too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill import ColumnSpec, EnvSpec, Signature, WindowSpec
from tidemill.rl.checks import require
from tidemill.rl.settings.registry import require_actions

if TYPE_CHECKING:
    import torch

    from tidemill import Agent, Policy, PolicyContext


@dataclass(frozen=True)
class RetraceConfig:
    """Q-learning from whole windows, each step corrected for how it was chosen (Munos et al. 2016)."""

    algorithm: str = "retrace.config:RetraceConfig"
    """Names these settings; always this."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    batch_size: int = 32
    """Windows of one update."""
    steps: int = 5
    """Transitions of a window, at least 1."""
    gamma: float = 0.99
    """Discount of one environment step."""
    trace_decay: float = 0.9
    """Lambda, 0 to 1: how much of a step's correction reaches the step before it."""
    epsilon: float = 0.2
    """Share of random actions while exploring; the policy that is learned about is greedy."""
    tau: float = 0.01
    """Share of the network that the target takes over at each update."""

    def __post_init__(self) -> None:
        require(min(self.hidden_sizes, default=1) > 0, "hidden_sizes", self.hidden_sizes, "positive sizes")
        for name in ("batch_size", "steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("gamma", "trace_decay", "tau"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        require(0 < self.epsilon <= 1, "epsilon", self.epsilon, "above 0 and at most 1")

    def window(self, frame_stack: int) -> WindowSpec:
        """The steps of a stream that an item covers."""
        return WindowSpec(history=frame_stack - 1, steps=self.steps)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Raise ConfigError unless actions are discrete."""
        require_actions(self.algorithm, env_spec, discrete=True)

    def extra_columns(self, env_spec: EnvSpec) -> Signature:  # noqa: ARG002 - the same for every environment
        """The extra column stored with each step: log mu(a|s) of the policy that acted, float32."""
        return (ColumnSpec("log_prob", "float32", ()),)

    def build_agent(self, env_spec: EnvSpec, device: torch.device, seed: int) -> Agent:
        """Return the learner's side."""
        from retrace.learning import RetraceAgent

        return RetraceAgent(self, env_spec, device, seed)

    def build_policy(self, env_spec: EnvSpec, context: PolicyContext) -> Policy:
        """Return the acting side."""
        from retrace.learning import RetracePolicy

        return RetracePolicy(self, env_spec, context)
