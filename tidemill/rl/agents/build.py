"""From settings to an agent or a policy. Each algorithm is imported only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.rl.agents.config import AgentConfig, check_fit
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.exploration import ActorPlace
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    from tidemill.rl.agents.interface import Agent, Policy


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

    check_fit(config, env_spec)
    if isinstance(config, DQNConfig):
        from tidemill.rl.agents.dqn.agent import DQNAgent

        return DQNAgent(config, env_spec, torch.device(device), seed)
    from tidemill.rl.agents.sac.agent import SACAgent

    return SACAgent(config, env_spec, torch.device(device), seed)


def build_policy(
    config: AgentConfig,
    env_spec: EnvSpec,
    device: str = "cpu",
    seed: int = 0,
    place: ActorPlace | None = None,
) -> Policy:
    """Return the acting side of an algorithm, with random parameters until its first `load`.

    Args:
        config: Its settings.
        env_spec: Shapes of the environment.
        device: A torch device, e.g. `cpu`.
        seed: Of the exploration, so two actors need two seeds.
        place: Which environments of the cluster this actor steps; a ladder of epsilons needs it.

    Raises:
        ConfigError: The algorithm cannot act in such an environment.
    """
    import torch

    check_fit(config, env_spec)
    if isinstance(config, DQNConfig):
        from tidemill.rl.agents.dqn.policy import DQNPolicy

        return DQNPolicy(config, env_spec, torch.device(device), seed, place or ActorPlace())
    from tidemill.rl.agents.sac.policy import SACPolicy

    return SACPolicy(config, env_spec, torch.device(device), seed)
