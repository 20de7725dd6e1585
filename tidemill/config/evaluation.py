"""Policies that an environment's actions allow to be evaluated."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.types import EnvSpec


def check_policy(policy: str, spec: EnvSpec, source: str = "env") -> None:
    """Raise ConfigError unless an environment's actions, and the source of the episodes, allow a policy.

    Args:
        policy: `evaluator.policy`.
        spec: Of the environment.
        source: `evaluator.source`.
    """
    if source == "simulators" and policy == "sampled":
        raise ConfigError(
            "evaluator.policy is 'sampled', allowed with evaluator.source 'simulators': 'greedy' or 'epsilon'"
        )
    if policy == "epsilon" and not spec.is_discrete:
        kind = "several choices at once" if spec.action_sizes else "continuous actions"
        raise ConfigError(f"evaluator.policy is 'epsilon', allowed for {kind}: 'greedy' or 'sampled'")
    if policy == "sampled" and spec.is_discrete:
        raise ConfigError("evaluator.policy is 'sampled', allowed for discrete actions: 'greedy' or 'epsilon'")
