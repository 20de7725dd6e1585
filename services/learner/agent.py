"""The agent of a learner: that of its algorithm, whose batches are relabelled if the run asks for it."""

from __future__ import annotations

import torch

from tidemill.config.hindsight import item_window
from tidemill.config.sections import LearnerConfig
from tidemill.envs.goals import goal_rewards
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.hindsight import Draws, HindsightAgent
from tidemill.types import EnvSpec


def learning_agent(config: LearnerConfig, spec: EnvSpec, device: torch.device, batch_size: int) -> Agent:
    """Return the agent that a learner trains.

    Args:
        config: The learner's settings.
        spec: Of the environment.
        device: Where it computes.
        batch_size: Items of this rank's part of an update.

    Raises:
        ConfigError: The algorithm does not fit the environment, or with `table.hindsight` its rewards cannot be
            computed from goals.
    """
    agent = build_agent(config.agent, spec, str(device), config.run.seed)
    if not config.table.hindsight:
        return agent
    window = item_window(config.agent, config.table, spec.frame_stack)
    draws = Draws(config.run.seed, batch_size)
    return HindsightAgent(agent, window, goal_rewards(config.env), config.table.hindsight, draws)
