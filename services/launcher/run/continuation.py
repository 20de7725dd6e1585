"""Limits on changes to a run that has trained: the shapes of its networks and the meaning of its table's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.config.digest import network_settings, training_settings
from tidemill.config.evaluation import epsilon_of, noop_max_of
from tidemill.config.load import by_names, from_document
from tidemill.config.sections import RunConfig
from tidemill.envs.recorded_spec import spec_changes
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, TidemillError
from tidemill.installation import typed
from tidemill.learner.checkpoint_header import ENV_STEPS, newest_header
from tidemill.rl.settings.registry import stored_columns
from tidemill.scores import NOT_EVALUATED, read_scores
from tidemill.services.launcher.run.folder import has_trained, with_run_paths
from tidemill.services.launcher.run.paths import has_log, log_folders, with_absolute_log
from tidemill.settings.overlay import to_document
from tidemill.types import EnvSpec

_SECTIONS = ("env", "agent", "table")
_OF_ITEMS = ("sampler", "chunk_length", "hindsight", "hindsight_steps")
"""Settings of the table that decide what an item is."""
_OF_EPISODES = (
    "env.kwargs.",
    "env.vector",
    "env.max_evaluation_steps",
    "env.frame_skip",
    "env.fire_reset",
    "env.sticky_actions",
    "env.max_frames",
)
"""Settings, or what their names begin with, that may decide what an evaluation's episodes return."""
_NAMED = 3


def changed_settings(before: RunConfig, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings that changed in sections that shapes depend on: dotted name to the values before and now."""
    then, new = to_document(before), to_document(now)
    changes: dict[str, tuple[Any, Any]] = {}
    for section in _SECTIONS:
        names = dict.fromkeys([*then.get(section, {}), *new.get(section, {})])
        values = {name: (then.get(section, {}).get(name), new.get(section, {}).get(name)) for name in names}
        changes |= {f"{section}.{name}": pair for name, pair in values.items() if pair[0] != pair[1]}
    return changes


def describe_changes(before: RunConfig, now: RunConfig) -> str:
    """Return all settings that differ, with both values, on one line; empty if none do. The run's path may differ.

    The line also warns of an environment, or a way of evaluating, that changed.
    """
    placed = (with_absolute_log(with_run_paths(each, now.run.folder)) for each in (before, now))
    then, new = (by_names(to_document(each)) for each in placed)
    names = [name for name in dict.fromkeys([*then, *new]) if then.get(name) != new.get(name)]
    changes = ", ".join(f"{name} {new.get(name)!r} (it was {then.get(name)!r})" for name in names)
    is_other = any(name.startswith(_OF_EPISODES) for name in names)
    what = "the environment" if is_other else "the way of evaluating" if _protocol(before) != _protocol(now) else ""
    return changes + (f"; scores before and after may not be comparable: {what} changed" if what else "")


def _protocol(config: RunConfig) -> tuple[object, ...]:
    """Return how a policy is evaluated: the values in effect."""
    settings = config.evaluator
    epsilon = epsilon_of(config) if settings.policy == "epsilon" else 0.0
    return settings.source, settings.policy, epsilon, noop_max_of(config)


def trained_settings(before: RunConfig, folder: Path) -> RunConfig:
    """Return the settings of a run with those of its newest checkpoint, which an edited config.yaml does not have.

    Args:
        before: Settings in the run's config.yaml.
        folder: The run's.
    """
    header = newest_header(folder / "checkpoints")
    settings: dict[str, Any] = header.get("settings", {})
    if not (settings and header.get("table")):  # of an earlier version
        return before
    document = to_document(before)
    if document["agent"]["algorithm"] != settings["agent.algorithm"]:
        document["agent"] = {}
    for name, value in settings.items():
        section, _, setting = name.partition(".")
        document[section][setting] = value
    document["table"] |= header["table"]
    try:
        return from_document(RunConfig, document)
    except TidemillError:  # settings that another version had
        return before


def check_continues(before: RunConfig, now: RunConfig, spec_of: Callable[[EnvSettings], EnvSpec]) -> None:
    """Check that checkpoint and table of a run fit its new settings; makes both environments and agents.

    Raises:
        ConfigError: They do not; the message names the settings that changed, what does not fit, and what to do.
    """
    reason = "; ".join(_reasons(before, now, spec_of))
    if not reason:
        return
    changes = _causes(before, now, spec_of)
    texts = [f"{name} {new!r} (it was {then!r})" for name, (then, new) in list(changes.items())[:_NAMED]]
    more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    raise ConfigError(
        f"run {now.run.name!r} cannot continue with {', '.join(texts)}{more}: {reason}. Leave it as it was, "
        f"or {_instead(now)}"
    )


def _causes(before: RunConfig, now: RunConfig, spec_of: Callable[[EnvSettings], EnvSpec]) -> dict[str, tuple[Any, Any]]:
    """Return the changed settings that do not fit even alone; all that changed if only several together do."""
    changes = changed_settings(before, now)
    then, new = to_document(before), to_document(now)
    unchanged = new | {section: then[section] for section in _SECTIONS}

    def fits(name: str) -> bool:
        section, setting = name.split(".")
        if setting not in then[section] or setting not in new[section]:
            return True  # of one of two algorithms
        alone = unchanged | {section: then[section] | {setting: new[section][setting]}}
        try:
            return not any(_reasons(before, from_document(RunConfig, alone), spec_of))
        except TidemillError:
            return False

    return {name: values for name, values in changes.items() if not fits(name)} or changes


def check_limits(before: RunConfig, now: RunConfig, folder: Path) -> None:
    """Check that limits are beyond what a run has already done, and that its target is not the one that it has reached.

    A limit as it was is checked only if the run has ended: one that was killed at its limit ends in order.

    Raises:
        ConfigError: The run would end before it trains; the message names the limit and how far the run is.
    """
    result = formats.read_json(folder / "result.json", formats.RESULT)
    reached, target = result.get("target_return"), now.run.target_return
    if result.get("solved") and reached is not None and target is not None and target <= reached:
        raise ConfigError(
            f"run.target_return is {target:g}, and the run has reached {reached:g}: raise it, or train on without a "
            "target by --run.target-return none"
        )
    for name, reached in progress(folder).items():
        limit = getattr(now.run, name)
        is_new, ended = limit != getattr(before.run, name), result.get("reason", "")
        has_ended = f"run.{name} " in ended and NOT_EVALUATED not in ended  # else the evaluation is made up for
        if (is_new or has_ended) and 0 < limit <= reached:
            raise ConfigError(
                f"run.{name} is {limit:g}, but the run is at {reached:,.0f} already: it counts from the run's first "
                "start. Set it above that, or to 0 for no limit"
            )


def check_spec(config: RunConfig, spec: EnvSpec) -> None:
    """Check that a run's environment has the spaces that its checkpoint and table are for.

    Raises:
        ConfigError: It has others; the message names the environment, what changed, and what to do.
    """
    pairs = spec_changes(config.run.folder, spec)
    if changes := [f"{name} {now!r} (it was {then!r})" for name, (then, now) in pairs.items()]:
        raise ConfigError(
            f"run {config.run.name!r} cannot continue: env.id {config.env.id!r} now has {', '.join(changes)}. Restore "
            f"the environment as it was, or {_instead(config)}"
        )


def _instead(config: RunConfig) -> str:
    """Return the remedy for a run that cannot continue."""
    run = config.run.folder.resolve()
    outside = any(has_log(log) for log in log_folders(config) if not log.resolve().is_relative_to(run))
    if has_trained(run) or outside:
        return "train under another --run.name"
    again = typed("train", "--config", config.run.folder / "config.yaml")
    return (
        f"train under another --run.name. The run has not trained yet: `{again}` with your options starts it from "
        "scratch"
    )


def progress(folder: Path) -> dict[str, float]:
    """Return how far a run is by each of its limits: at least so far, by its newest evaluation and checkpoint."""
    scores = read_scores(folder / "scores.csv")
    newest = scores[-1] if scores else None
    saved: dict[str, int] = newest_header(folder / "checkpoints").get("counters", {})
    env_steps = sum(count for name, count in saved.items() if name.startswith(ENV_STEPS))
    return {
        "max_wall_s": trained_s(folder),
        "max_env_steps": max(env_steps, newest.env_steps if newest else 0),
        "max_learner_steps": max(saved.get("learner_steps", 0), newest.learner_steps if newest else 0),
    }


def trained_s(folder: Path) -> float:
    """Return the seconds of training that a run has saved so far; 0 for none."""
    try:
        return float(formats.read_json(folder / "wall_clock.json", formats.CLOCK)["wall_s"])
    except (OSError, KeyError, TypeError, ValueError):
        return 0.0


def _reasons(before: RunConfig, now: RunConfig, spec_of: Callable[[EnvSettings], EnvSpec]) -> Iterator[str]:
    from tidemill.rl.agents.build import build_agent

    if before.env.id != now.env.id:
        yield "its checkpoint and table are for another environment"
    if before.agent.algorithm != now.agent.algorithm:
        yield "its checkpoint is for another algorithm"
    if (before.env.id, before.agent.algorithm) != (now.env.id, now.agent.algorithm):
        return
    before_spec, now_spec = spec_of(before.env), spec_of(now.env)
    if stored_columns(before.agent, before_spec) != stored_columns(now.agent, now_spec):
        yield "its table holds steps of another shape"
    old, new = build_agent(before.agent, before_spec), build_agent(now.agent, now_spec)
    if _shapes(old.state_dict()) != _shapes(new.state_dict()):
        yield "its checkpoint holds networks of another shape"
    elif network_settings(training_settings(before)) != network_settings(training_settings(now)):
        yield "its checkpoint is for another network"
    if before.table.name != now.table.name or (now.launcher.replay and not log_folders(now)):
        return  # the table begins empty
    items = [getattr(before.table, name) == getattr(now.table, name) for name in _OF_ITEMS]
    if not (old.window == new.window and old.recurrent_state_size == new.recurrent_state_size and all(items)):
        yield "its table holds items of another shape"
    exponents = {each.table.priority_exponent for each in (before, now) if each.table.sampler == "prioritized"}
    if len(exponents) > 1:
        yield (
            "the setting is for a new table, such as that of another --table.name. The run's own keeps the exponent "
            "that it was made with or that `tidemill replay update` gave it, and accepts the setting as it was"
        )


def _shapes(state: Any, name: str = "") -> dict[str, tuple[int, ...]]:  # noqa: ANN401 - nested dicts of tensors
    """Return the shape of each tensor of a state by its path."""
    if isinstance(state, Mapping):
        found: dict[str, tuple[int, ...]] = {}
        for key, value in state.items():
            found |= _shapes(value, f"{name}/{key}")
        return found
    return {name: tuple(state.shape)} if hasattr(state, "shape") else {}
