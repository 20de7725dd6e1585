"""Refusal of policies for which an inference service cannot act."""

from __future__ import annotations

from tidemill.errors import ConfigError
from tidemill.rl.agents.interface import Policy, SplitPolicy

_LEAVE_OUT = "leave launcher.inference at 0 and cluster.inference empty"


def check_split(policy: Policy, algorithm: str) -> SplitPolicy:
    """Return a policy of `algorithm` if an inference service can pass through its network; else raise ConfigError."""
    if isinstance(policy, SplitPolicy):
        return policy
    lacks = [name for name in ("forward", "choose", "priority_uses_params") if not hasattr(policy, name)]
    raise ConfigError(
        f"agent.algorithm is {algorithm!r}, whose policy has no {' and no '.join(lacks)}, which an inference service "
        f"needs: {_LEAVE_OUT}"
    )


def check_remote(policy: Policy, *, prioritized: bool, max_policy_lag: int, keeps_params: bool, algorithm: str) -> None:
    """Raise ConfigError unless an inference service can act for an actor.

    Args:
        policy: What the actor would act by.
        prioritized: Whether the table wants initial priorities.
        max_policy_lag: `learner.max_policy_lag`.
        keeps_params: Whether the actor loads parameters besides, to fall back on.
        algorithm: Its name, for the message.
    """
    split = check_split(policy, algorithm)
    if max_policy_lag >= 0:
        raise ConfigError(
            f"learner.max_policy_lag is {max_policy_lag}, but an inference service always acts with the newest "
            f"version, so actors cannot keep this bound: set it to -1, or {_LEAVE_OUT}"
        )
    if prioritized and split.priority_uses_params and not keeps_params:
        raise ConfigError(
            f"table.sampler is 'prioritized' and an inference service acts for the actors, but initial priorities of "
            f"agent.algorithm {algorithm!r} need the parameters in the actor: set actor.inference_fallback to 'local', "
            "or launcher.actors to 0 if simulators alone play"
        )
