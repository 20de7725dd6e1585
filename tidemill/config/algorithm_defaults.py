"""Defaults of each algorithm, and adaptation of presets to another algorithm or environment.

A setting that neither file nor command line names has the default of its section, unless `run_defaults` of the
algorithm's settings has another: that of its paper, or of RL Baselines3 Zoo and CleanRL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.settings.base import ROLLOUTS
from tidemill.rl.settings.registry import config_class
from tidemill.settings.overlay import overlay, whole

DEFAULT_ALGORITHM = "sac"

Document = dict[str, Any]


_FEW_ITEMS = 512
_LARGEST_CHUNK = 1024
_MOST_NAMED = 12
_OF_THE_ALGORITHM = {
    "table": ("sampler", "min_size", "max_items", "chunk_length"),
    "learner": ("updates_per_env_step", "publish_every", "publish_half", "max_policy_lag"),
}
"""Settings of a preset that are meant for its algorithm, besides those of `agent`."""

_LOCK_STEP: Document = {"learner": {"threads": 1}}
"""Of a run that is the same on every machine, which may have other numbers of processors."""


def merged(document: Mapping[str, Any], over: Mapping[str, Any]) -> Document:
    """Return a document with the values of another one put over it, mapping by mapping."""
    result = dict(document)
    for key, value in over.items():
        below = result.get(key)
        is_nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if is_nested else value  # type: ignore[arg-type]
    return result


def with_defaults(document: Mapping[str, Any], algorithm: str) -> Document:
    """Return a run's document with the defaults of its algorithm below it.

    An algorithm that learns from rollouts has as many items in a batch as there are environments of all actors, a table
    that starts with one batch, and chunks that end where items do.

    Args:
        document: Sections of settings, as files and command lines have them, those of all processes.
        algorithm: Its name.
    """
    own_class = config_class(algorithm)
    is_on_policy = hasattr(own_class, "rollout_rows")
    defaults = getattr(own_class, "run_defaults", None) or (ROLLOUTS if is_on_policy else {})
    result = merged(defaults, document)
    if not all(isinstance(section, Mapping) for section in result.values()):
        return result  # anything but a mapping is refused later, by name
    if result.get("run", {}).get("deterministic"):
        result = merged(_LOCK_STEP, result)
    try:
        envs = _total_envs(result)
        if getattr(own_class, "exploration", "") == "ladder" and (envs == 1 or _only_simulators_play(result)):
            # A ladder's first epsilon would never fall, and simulators begin with those, however few of them there are.
            return merged({"agent": {"exploration": "schedule"}}, result)
        if not is_on_policy:
            return result
        agent = {"batch_size": envs} | result.get("agent", {})
        settings: Any = overlay(own_class(), agent)
    except (ConfigError, OverflowError, TypeError, ValueError):
        return result  # so is a value that is wrong
    rows, batch = settings.rollout_rows, settings.batch_size
    chunk = max(length for length in range(1, min(rows, _LARGEST_CHUNK) + 1) if rows % length == 0)
    table = {"min_size": batch, "max_items": max(_FEW_ITEMS, 4 * batch), "chunk_length": chunk}
    return merged({"agent": {"batch_size": batch}, "table": table}, result)


def _total_envs(document: Mapping[str, Any]) -> int:
    """Return the environments of all actors, at least 1."""
    actors = max(_number(document, "actor", "count", 1), _number(document, "launcher", "actors", 1))
    return max(_number(document, "env", "num_envs", EnvSettings.num_envs) * actors, 1)


def _only_simulators_play(document: Mapping[str, Any]) -> bool:
    return _number(document, "inference", "simulators", 0) > 0 and _number(document, "launcher", "actors", 1) == 0


def _number(document: Mapping[str, Any], section: str, name: str, default: int) -> int:
    return int(whole(document.get(section, {}).get(name, default)))


def adapted(
    document: Document, options: Mapping[str, Any], algorithm: str | None, *, is_preset: bool
) -> tuple[Document, list[str]]:
    """Return a file's settings without those that do not apply to the command line's algorithm or environment.

    Those of its algorithm say nothing about another one, nor does a preset's target about another environment.

    Args:
        document: The file's settings.
        options: The command line's.
        algorithm: That of the command line; None if it names none.
        is_preset: Whether the file is one of those that come with Tidemill.

    Returns:
        The settings that stay, and a line for each kind of those that were left out.
    """
    notes: list[str] = []
    agent = document.get("agent") or {}
    if algorithm is not None and isinstance(agent, Mapping) and agent.get("algorithm", DEFAULT_ALGORITHM) != algorithm:
        before = agent.get("algorithm", DEFAULT_ALGORITHM)
        left_out = {"agent": tuple(agent), **_OF_THE_ALGORITHM}
        document, dropped = _without(document, left_out)
        dropped = [name for name in dropped if name != "agent.algorithm"]
        notes += [f"settings of {before} are left out for {algorithm}: {_named(dropped)}"] if dropped else []
    env, wanted = document.get("env") or {}, options.get("env", {}).get("id", "")
    if is_preset and wanted and env.get("id", wanted) != wanted:
        are_games = wanted.startswith("ALE/") and str(env["id"]).startswith("ALE/")  # preprocessed alike
        others = () if are_games else tuple(name for name in env if name not in ("id", "num_envs"))
        left_out = {"env": others, "run": ("target_return",), "evaluator": ("start_env_steps",)}
        document, dropped = _without(document, left_out)
        notes += [f"settings for {env['id']} are left out for {wanted}: {_named(dropped)}"] if dropped else []
    return document, notes


def _named(settings: Sequence[str]) -> str:
    """Return the names in one line; of a run's config.yaml, which has every setting, only the first ones."""
    more = f" and {len(settings) - _MOST_NAMED} more" if len(settings) > _MOST_NAMED else ""
    return ", ".join(settings[:_MOST_NAMED]) + more


def _without(document: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> tuple[Document, list[str]]:
    """Return a document without some settings, and the dotted names of those it had."""
    result, dropped = {}, []
    for section, values in document.items():
        out = names.get(section, ()) if isinstance(values, Mapping) else ()
        dropped += [f"{section}.{name}" for name in values or () if name in out]
        result[section] = {name: value for name, value in values.items() if name not in out} if out else values
    return result, dropped
