"""File that describes a sweep, read and checked before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from tidemill.config.addresses import check_addresses
from tidemill.config.algorithm_defaults import merged
from tidemill.config.given import given_in
from tidemill.config.load import by_names, by_sections, load_config, read_document
from tidemill.config.presets import FOLDER, find_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.launcher.run.free_ports import fixed_addresses
from tidemill.services.tools.sweep.space import Parameter, Values, grid, parse_space
from tidemill.settings.check import check, nearest, refuse
from tidemill.settings.overlay import overlay


@dataclass(frozen=True)
class SweepSettings:
    """Settings of a sweep's file besides its space."""

    base: str = ""
    """Config that the trials vary: a preset's name or a file."""
    method: Literal["grid", "random", "tpe"] = "random"
    """`grid` tries every combination, `random` draws, `tpe` lets Optuna propose what past trials make promising."""
    trials: int = 20
    """How many trials; a grid has as many as it has combinations."""
    seeds: tuple[int, ...] = (1,)
    """Seeds of each trial; its score is the mean over them."""
    objective: Literal["last", "best", "mean"] = "last"
    """Score of a run: its last evaluation, its best one, or the mean of all, which favours learning fast."""
    parallel: int = 1
    """Simultaneous runs; each has its own cluster and a share of the machine's GPUs."""
    share_replay: bool = False
    """Whether one replay service has the tables of all runs, instead of one for each run."""
    seed: int = 1
    """Of what `random` and `tpe` draw."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings put over the base in every trial, by dotted name, such as `run.max_env_steps: 50000`."""

    def __post_init__(self) -> None:
        """Check."""
        check(bool(self.base), "base", self.base, "the name of a preset (tidemill configs), or a config file")
        check(self.trials >= 1, "trials", self.trials, "at least 1")
        check(self.parallel >= 1, "parallel", self.parallel, "at least 1")
        are_seeds = bool(self.seeds) and all(0 <= seed < 2**63 for seed in self.seeds)
        differ = len(set(self.seeds)) == len(self.seeds)
        check(are_seeds and differ, "seeds", self.seeds, "different numbers, 0 to 2**63 - 1")
        check(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        settings: How it searches.
        space: What varies.
        base: The base config's document.
        document: The file as it was read.
    """

    settings: SweepSettings
    space: tuple[Parameter, ...]
    base: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def ends(self) -> list[dict[str, Any]]:
        """Values at both ends of the space."""
        return [{each.name: each.values[index] for each in self.space} for index in (0, -1)]

    @property
    def trial_count(self) -> int:
        """How many trials there will be."""
        return sum(1 for _ in grid(self.space)) if self.settings.method == "grid" else self.settings.trials

    def config(self, values: Values) -> dict[str, Any]:
        """Return the config document of a trial."""
        return merged(merged(self.base, by_sections(self.settings.settings)), by_sections(values))


def read_sweep(path: Path, kept_base: Path | None = None) -> Sweep:
    """Return the sweep that a YAML file describes, checked.

    Args:
        path: The file.
        kept_base: Copy of the base that the sweep was started with, if it has begun. It takes the place of a preset,
            which another version of Tidemill may have changed.

    Raises:
        ConfigError: The file cannot be read, a setting is unknown or out of range, the base config does not take the
            values of the space, or the runs would never end.
    """
    document = read_document(path, "the sweep's FILE")
    known = [*(each.name for each in fields(SweepSettings)), "space"]
    for key in document:
        if key not in known:
            hint = nearest(str(key), known) or f"; known: {', '.join(known)}"
            raise ConfigError(f"{path}: unknown setting {key!r}{hint}")
    space = parse_space(document.get("space"))
    rest = {key: value for key, value in document.items() if key != "space"}
    settings = overlay(SweepSettings(base="-"), {"base": "", **rest})
    file = find_config(settings.base)
    base = read_document(file)
    if kept_base is not None and file.parent == FOLDER and (kept := read_document(kept_base)) != base:
        print(f"note: preset {settings.base} has changed; this sweep continues with {kept_base}", file=sys.stderr)
        base = kept
    sweep = Sweep(settings, space, base, document)
    _check_configs(sweep, given_in(file))
    return sweep


def _check_configs(sweep: Sweep, given: Mapping[str, Any]) -> None:
    """Load configs at both ends of the space, and a grid's all, so that a wrong one is known before any run.

    Args:
        sweep: What is checked.
        given: The settings that the base gives, by dotted name.
    """
    varied = {name for each in sweep.space for value in each.values for name in by_names({each.name: value})}
    named = varied | by_names(sweep.settings.settings).keys()
    if own := named & {"run.name", "run.root", "run.seed"}:
        raise ConfigError(f"{', '.join(sorted(own))}: set by the sweep; list seeds in its setting `seeds`")
    if sweep.settings.share_replay:
        _check_shared(sweep, named, varied)
    is_one_of_many = not sweep.settings.share_replay and sweep.trial_count * len(sweep.settings.seeds) > 1
    draws_or_repeats = sweep.settings.method != "grid" or len(sweep.settings.seeds) > 1
    filled: set[str] = set()
    for values in grid(sweep.space) if sweep.settings.method == "grid" else sweep.ends:
        config = load_config(sweep.config(values))
        launcher = replace(config.launcher, replay=config.launcher.replay and not sweep.settings.share_replay)
        config = replace(config, launcher=launcher)
        check_addresses(config, {**given, **by_names(sweep.settings.settings), **by_names(values)})
        run, folder = config.run, config.replay.storage.folder
        if folder and "{run}" not in folder and config.launcher.replay and is_one_of_many:
            raise ConfigError(
                f"replay.storage.folder is {folder!r}, where every run would find the experience of those before it: "
                "leave it out, or name a folder for each by {run}, such as '{run}/replay'"
            )
        has_writers = launcher.actors or config.inference.simulators
        if not launcher.replay and is_one_of_many and has_writers:
            if draws_or_repeats or config.table.name in filled:
                raise ConfigError(
                    f"launcher.replay is false and table.name is {config.table.name!r}, where a run would find the "
                    "experience of those before it: set share_replay in place of launcher.replay"
                )
            filled.add(config.table.name)
        if sweep.settings.parallel > 1:
            _check_ports(config, sweep.settings)
        if run.target_return is None and not (run.max_env_steps or run.max_learner_steps or run.max_wall_s):
            raise ConfigError("a run would never end; add for example `settings: {run.max_env_steps: 50000}`")


def _check_ports(config: RunConfig, settings: SweepSettings) -> None:
    """Raise a `ConfigError` if services of simultaneous runs would listen at one address."""
    refuse(
        f"{setting} is {address!r}, which simultaneous runs cannot share (parallel is {settings.parallel}): "
        + ("set port 0 in `settings`, or parallel to 1" if takes_any_port else "set parallel to 1")
        for setting, address, takes_any_port in fixed_addresses(config)
    )


def _check_shared(sweep: Sweep, named: Set[str], varied: Set[str]) -> None:
    """Check what does not go with one replay service for all runs, of the settings in the file and those that vary."""
    own = named & {"cluster.replay", "cluster.replay_shards", "launcher.replay", "table.name", "actor.id"}
    own |= {name for name in varied if name.startswith("replay.")}
    if own:
        raise ConfigError(f"{', '.join(sorted(own))}: with share_replay, fixed for all runs or set by the sweep")
    config = load_config(sweep.config({}))
    check(config.replay.shards == 1, "replay.shards", config.replay.shards, "1 with share_replay")
    check(not config.run.deterministic, "run.deterministic", True, "false with share_replay")
