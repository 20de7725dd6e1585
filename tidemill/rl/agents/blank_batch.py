"""Batches of zeros: of the right shapes where their content does not matter."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import AgentConfig, stored_columns
from tidemill.types import ACTION_MASK, EnvSpec


def blank_batch(agent: Agent, config: AgentConfig, env_spec: EnvSpec, items: int) -> dict[str, Tensor]:
    """Return a batch as `Agent.decode` makes it of one long episode in which nothing is seen, and all actions are 0.

    Args:
        agent: Decodes it.
        config: The agent's settings.
        env_spec: Shapes of the environment.
        items: Of the batch.

    Returns:
        Tensors of the host, [B, ...].
    """
    length = agent.window.length
    rows = items + length
    columns = {
        column.name: np.full((rows, *column.shape), column.name == ACTION_MASK, column.dtype)  # every action is legal
        for column in stored_columns(config, env_spec)
    }
    index = np.arange(items)[:, None] + np.arange(length)
    batch = {name: torch.from_numpy(array) for name, array in agent.decode(columns, index).items()}
    if agent.recurrent_state_size:
        batch["recurrent_state"] = torch.zeros((items, agent.recurrent_state_size))
    return batch
