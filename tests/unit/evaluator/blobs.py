"""Parameters of an untrained agent, as a parameter server would hand them out."""

from __future__ import annotations

import datetime

from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.make import spec_of
from tidemill.params.blob import pack
from tidemill.params.version import Params, ParamsMetadata, Precision, Version
from tidemill.rl.agents.build import build_agent


def blob_of(config: EvaluatorConfig, seed: int = 0) -> bytes:
    """Return the policy's parameters of an agent that was never updated."""
    state = build_agent(config.agent, spec_of(config.env), seed=seed).policy_state()
    return pack({name: value.numpy() for name, value in state.items()}, ParamsMetadata())


def params_of(config: EvaluatorConfig, seed: int = 0) -> Params:
    """Return them as version 1."""
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    version = Version(1, 0, 1, created, ParamsMetadata(config.agent.algorithm, config.env.id), ())
    return Params(version, Precision.FULL, blob_of(config, seed))
