"""Settings that training depends on, their digest, and the mark of a run that has diverged with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tidemill.config.fixed import FREE
from tidemill.config.sections import EvaluatorConfig, LearnerConfig, RunConfig
from tidemill.params.version import DIVERGED
from tidemill.rl.settings.registry import ALGORITHMS
from tidemill.settings.overlay import to_document

_NAMES = ("agent.algorithm", "env.id")
"""What is trained where. They always count: each algorithm has settings with other defaults."""

_OF_NETWORK = ("agent.distribution", "agent.activation", "agent.actor_activation", "env.observation_indices")
"""Settings with which the same numbers, in the same shapes, are another network."""


def network_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `training_settings` with which the same numbers are another network."""
    return {name: settings[name] for name in _OF_NETWORK if name in settings}


def training_settings(config: LearnerConfig | EvaluatorConfig | RunConfig) -> dict[str, Any]:
    """Return the settings of agent and environment that training depends on, by dotted name, as JSON has them."""
    return _by_name(config.agent, config.env)


def config_digest(config: LearnerConfig | EvaluatorConfig | RunConfig) -> str:
    """Return the SHA-256, in hex, of the resolved settings of agent and environment."""
    document = {"agent": to_document(config.agent), "env": to_document(config.env)}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def diverged_tag(config: LearnerConfig | EvaluatorConfig | RunConfig) -> str:
    """Return the tag at the parameter server that marks the run as diverged, with these settings, target and limits.

    It leaves out settings that have their defaults: a version of Tidemill that adds some finds the mark of one before.
    Those of a user's algorithm all count: its author mends it by other defaults.
    """
    defaults = _by_name(type(config.agent)(), type(config.env)())
    settings = training_settings(config)
    is_users = config.agent.algorithm not in ALGORITHMS
    own = {
        name: value
        for name, value in settings.items()
        if value != defaults[name] or name in _NAMES or (is_users and name.startswith("agent."))
    }
    what = config.run.end_tag + json.dumps(own, sort_keys=True)
    return f"{DIVERGED}{hashlib.sha256(what.encode()).hexdigest()[:16]}"


def _by_name(agent: object, env: object) -> dict[str, Any]:
    document = {"agent": to_document(agent), "env": to_document(env)}
    named = {f"{section}.{name}": value for section, each in document.items() for name, value in each.items()}
    kept: dict[str, Any] = json.loads(json.dumps({name: value for name, value in named.items() if name not in FREE}))
    return kept
