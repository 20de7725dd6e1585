"""Rows of environments as an actor stores them, without an actor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemill.envs.interface import action_mask_of
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.observation_parts import observation_columns
from tidemill.rl.agents.interface import Policy
from tidemill.rl.policy_io import PolicyInputBuilder


def play(
    settings: EnvSettings, policy: Policy, rows: int, num_envs: int, *, evaluation: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """Return rows of an environment as an actor stores them, each [num_envs * rows, ...], stream by stream.

    A recurrent policy's state before each row is among them, as `recurrent_state`.
    """
    env = make_env(settings, num_envs, training=True)
    builder = PolicyInputBuilder(num_envs, env.spec, policy.recurrent_state_size)
    observation, is_first, steps = env.reset(0), np.ones(num_envs, np.bool_), []
    for _ in range(rows):
        mask = action_mask_of(env)
        policy_input = builder.build(observation, is_first, action_mask=mask)
        output = policy.act(policy_input, evaluation=evaluation)
        builder.record(output)
        result = env.step(output.action)
        columns = observation_columns(env.spec.observation_parts, observation)
        row = {**columns, "action": output.action, "reward": result.reward}
        row |= {"terminated": result.terminated, "truncated": result.truncated, "is_first": is_first}
        masks = {} if mask is None else {"action_mask": mask}
        row |= {"recurrent_state": policy_input.recurrent_state} if policy.recurrent_state_size else {}
        steps.append(row | masks | output.extras)
        observation, is_first = result.observation, result.is_first
    return {
        name: np.stack([step[name] for step in steps], axis=1).reshape(-1, *steps[0][name].shape[1:])
        for name in steps[0]
    }
