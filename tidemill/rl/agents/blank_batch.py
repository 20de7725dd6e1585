"""Batches of zeros: of the right shapes where their content does not matter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tidemill.arrays import Array
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import AgentConfig, stored_columns
from tidemill.types import ACTION_MASK, EnvSpec


def blank_batch(
    agent: Agent, config: AgentConfig, env_spec: EnvSpec, items: int, extras: Mapping[str, Array] | None = None
) -> dict[str, Tensor]:
    """Return a batch as `Agent.decode` makes it of one long episode in which nothing is seen, and all actions are 0.

    Args:
        agent: Decodes it.
        config: The agent's settings.
        env_spec: Shapes of the environment.
        items: Of the batch.
        extras: The algorithm's own columns of each step, [...] each; None: zeros.

    Returns:
        Tensors of the host, [B, ...].
    """
    length = agent.window.length
    rows = items + length
    values = {ACTION_MASK: True, **(extras or {})}  # every action is legal
    columns = {
        column.name: np.full((rows, *column.shape), values.get(column.name, 0), column.dtype)
        for column in stored_columns(config, env_spec)
    }
    index = np.arange(items)[:, None] + np.arange(length)
    batch = {name: torch.from_numpy(array) for name, array in agent.decode(columns, index).items()}
    if agent.recurrent_state_size:
        batch["recurrent_state"] = torch.zeros((items, agent.recurrent_state_size))
    return batch
