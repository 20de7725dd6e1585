"""Digest of the settings that training depends on, and the mark of a run that has diverged with them."""

from __future__ import annotations

import hashlib
import json

from tidemill.config.sections import EvaluatorConfig, LearnerConfig, RunConfig
from tidemill.params.version import DIVERGED
from tidemill.settings.overlay import to_document


def config_digest(config: LearnerConfig | EvaluatorConfig | RunConfig) -> str:
    """Return the SHA-256, in hex, of the resolved settings of agent and environment."""
    document = {"agent": to_document(config.agent), "env": to_document(config.env)}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def diverged_tag(config: LearnerConfig | EvaluatorConfig | RunConfig) -> str:
    """Return the tag at the parameter server that marks the run as diverged, with these settings, target and limits."""
    what = config.run.end_tag + config_digest(config)
    return f"{DIVERGED}{hashlib.sha256(what.encode()).hexdigest()[:16]}"
