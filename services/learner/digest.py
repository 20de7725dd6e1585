"""A fingerprint of the settings that make parameters what they are."""

from __future__ import annotations

import hashlib
import json

from tidemill.config.overlay import to_document
from tidemill.config.sections import LearnerConfig


def config_digest(config: LearnerConfig) -> str:
    """Return the SHA-256, in hex, of the resolved settings of agent and environment."""
    document = {"agent": to_document(config.agent), "env": to_document(config.env)}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
