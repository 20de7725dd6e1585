"""The agent of a learner: as it is, or behind the relabelling of its goals."""

from __future__ import annotations

from typing import Any

import torch

from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.envs.make import spec_of
from tidemill.rl.agents.dqn import DQNAgent
from tidemill.rl.agents.hindsight import HindsightAgent
from tidemill.services.learner.learner import learning_agent
from tidemill.types import WindowSpec


def test_agent_is_wrapped_only_where_goals_are_relabelled() -> None:
    """Without, nothing stands between the learner and its algorithm; with, items are as long as goals may be away."""
    document: dict[str, Any] = {
        "env": {"id": "examples.bit_flip:BitFlip", "observation_stack": 2},
        "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [4], "n_step": 1},
        "table": {"hindsight_steps": 10},
    }
    for hindsight, kind, steps in ((0.0, DQNAgent, 1), (0.8, HindsightAgent, 10)):
        document["table"]["hindsight"] = hindsight
        config = from_document(LearnerConfig, document)
        agent = learning_agent(config, spec_of(config.env), torch.device("cpu"), 32)
        assert type(agent) is kind
        assert agent.window == WindowSpec(history=1, steps=steps)
