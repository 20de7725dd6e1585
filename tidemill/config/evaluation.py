"""How policies are evaluated: what an environment's actions allow, and settings that stand for others."""

from __future__ import annotations

from tidemill.config.sections import EvaluatorConfig, RunConfig
from tidemill.errors import ConfigError
from tidemill.types import EnvSpec

CONFIRMATION_SEED_OFFSET = 1_000_000
"""Confirmations play seeds this far above those of the evaluations."""

TEST_SEED_OFFSET = 10 * CONFIRMATION_SEED_OFFSET
"""`tidemill evaluate` plays seeds this far above those of the evaluations, unless it is given others."""

TRAINING_SEED = 100_000_000
"""Least seed of training, far above all of these."""


def epsilon_of(config: EvaluatorConfig | RunConfig) -> float:
    """Return the share of random actions of the policy `epsilon`: the evaluator's, or else the agent's."""
    if config.evaluator.epsilon is not None:
        return config.evaluator.epsilon
    return float(getattr(config.agent, "evaluation_epsilon", 0.0))


def noop_max_of(config: EvaluatorConfig | RunConfig) -> int:
    """Return the most no-op frames at the start of an episode: the evaluator's, or else the environment's."""
    return config.env.noop_max if config.evaluator.noop_max is None else config.evaluator.noop_max


def is_fresh(config: EvaluatorConfig, seeds: range) -> bool:
    """True if none of these seeds is one of the run's evaluations, confirmations or training."""
    own = config.evaluator.seed
    return seeds.stop <= own or (own + TEST_SEED_OFFSET <= seeds.start and seeds.stop <= TRAINING_SEED)


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
