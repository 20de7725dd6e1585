"""Construction of an agent or a policy from settings. An algorithm is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tidemill.rl.agents.interface import BuildsBothSides, PolicyContext
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.registry import ALGORITHMS, AgentConfig, require_bfloat16
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from tidemill.rl.agents.interface import Agent, Policy
    from tidemill.rl.networks.precision import Precision


def build_agent(config: AgentConfig, env_spec: EnvSpec, device: str = "cpu", seed: int = 0) -> Agent:
    """Return the learner's side of an algorithm.

    Args:
        config: Its settings.
        env_spec: Shapes of the environment.
        device: A torch device, e.g. `cpu` or `cuda:0`.
        seed: Of the initial parameters and of any noise inside updates.

    Raises:
        ConfigError: The algorithm cannot act in such an environment.
    """
    import torch

    config.validate_env(env_spec)
    if isinstance(config, BuildsBothSides):
        return config.build_agent(env_spec, torch.device(device), seed)
    agent: Agent = _function(config, "agent")(config, env_spec, torch.device(device), seed)
    return agent


def build_policy(
    config: AgentConfig,
    env_spec: EnvSpec,
    device: str = "cpu",
    seed: int = 0,
    slot: ActorSlot | None = None,
    precision: Precision = "float32",
) -> Policy:
    """Return the acting side of an algorithm, with random parameters until its first `load`.

    Args:
        config: Its settings.
        env_spec: Shapes of the environment.
        device: A torch device, e.g. `cpu`.
        seed: Of the exploration, so two actors need two seeds.
        slot: Which environments of the cluster this actor steps; a ladder of epsilons needs it.
        precision: Number format of an image network's forward pass; `auto` takes the faster one here.

    Raises:
        ConfigError: The algorithm cannot act in such an environment, or not in bfloat16.
    """
    import torch

    config.validate_env(env_spec)
    if precision == "bfloat16":
        require_bfloat16("precision", config, env_spec)
    context = PolicyContext(torch.device(device), seed, slot or ActorSlot(), precision)
    if isinstance(config, BuildsBothSides):
        return config.build_policy(env_spec, context)
    policy: Policy = _function(config, "policy")(config, env_spec, context)
    return policy


def _function(config: AgentConfig, side: str) -> Callable[..., Any]:
    """Return the builder of one side, `agent` or `policy`: of the algorithm's page, or of a user's package."""
    if config.algorithm in ALGORITHMS:
        page = importlib.import_module(f"tidemill.rl.agents.{config.algorithm}")
        return cast(Callable[..., Any], getattr(page, f"build_{side}"))
    folder = type(config).__module__.rpartition(".")[0]
    return cast(Callable[..., Any], importlib.import_module(f"{folder}.{side}").build)
