"""The plan of a result: the config as it is run, its seeds, and where everything is kept."""

from __future__ import annotations

import argparse
import copy
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learn.atomic import write_json, write_text
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.settings.overlay import to_document

RUNS = Path("runs/learn")
RESULTS = Path("benchmarks/results/learning")


@dataclass(frozen=True)
class Plan:
    """One result to be made."""

    name: str
    source: Path
    """The config it is made from, without what the command line changes."""
    text: str
    """The config as it is run, as YAML."""
    config: RunConfig
    seeds: tuple[int, ...]
    test_episodes: int
    """Fresh episodes that the last and the best version of each seed are tested on; 0 for no test."""
    options: tuple[str, ...]
    """Options besides config and seeds that decide the result, as on the command line."""
    sb3: str = ""
    """Folder that Stable-Baselines3 is installed in; empty: no peer."""
    peer_every: int = 0
    """Agent decisions between two evaluations of the peer; 0: a fiftieth of the run."""
    declared: bool = False
    """Whether these are the seeds that were declared for a report."""

    @property
    def root(self) -> Path:
        """Folder of the runs."""
        return RUNS / self.name

    @property
    def results(self) -> Path:
        """Folder of what is committed."""
        return RESULTS / self.name

    @property
    def config_file(self) -> Path:
        """The config as it is run."""
        return self.root / "config.yaml"

    @property
    def command(self) -> str:
        """The command that makes this result again."""
        if self.declared:
            return shlex.join(["python", "-m", "benchmarks.learn", "--report", self.name])
        seeds = [str(seed) for seed in self.seeds]
        words = ["python", "-m", "benchmarks.learn", str(self.source), "--seeds", *seeds, *self.options]
        return shlex.join(words)

    def run_folder(self, seed: int) -> Path:
        """Return where the run of a seed is kept."""
        return self.root / f"seed-{seed}"

    def peer_folder(self, seed: int) -> Path:
        """Return where the peer's run of a seed is kept."""
        return self.root / f"sb3-seed-{seed}"

    def write(self) -> None:
        """Keep config and command beside the runs."""
        write_text(self.config_file, self.text)
        write_json(self.root / "plan.json", {"command": self.command})

    def changed_settings(self, folder: Path) -> list[str]:
        """Return the settings in which an earlier run differs from what would be run now, as `a.b: was -> is`."""
        was = read_document(folder / "config.yaml")
        of_run = replace(self.config.run, root=was["run"]["root"], name=was["run"]["name"], seed=was["run"]["seed"])
        now = to_document(replace(self.config, run=of_run))
        before, after = dict(_leaves(was)), dict(_leaves(now))
        # A setting that only one of them has came or went with a release; its default is the old behaviour.
        return [
            f"{key}: {before[key]} -> {after[key]}" for key in before.keys() & after.keys() if before[key] != after[key]
        ]


def make_plan(arguments: argparse.Namespace, *, declared: bool = False) -> Plan:
    """Return the plan that a command line asks for.

    Args:
        arguments: The command line.
        declared: Whether its seeds are those that were declared for a report.

    Raises:
        ConfigError: the config or what the command line changes in it is wrong.
    """
    source = Path(arguments.config)
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    document = read_document(source)
    changed = with_changes(document, _changes(arguments))
    if changed != document:
        header = [line for line in text.splitlines() if line.startswith("#")]
        text = "\n".join([*header, yaml.safe_dump(changed, sort_keys=False)])
    return Plan(
        name=arguments.name or source.stem,
        source=source,
        text=text,
        config=from_document(RunConfig, changed),
        seeds=tuple(arguments.seeds),
        test_episodes=arguments.test_episodes,
        options=tuple(_options(arguments)),
        sb3=arguments.sb3,
        peer_every=arguments.peer_every,
        declared=declared,
    )


def with_changes(document: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a document with other values at dotted keys; sections are made where there are none."""
    result = copy.deepcopy(dict(document))
    for key, value in changes:
        *path, last = key.split(".")
        section = result
        for name in path:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--set {key}: {name} is not a section of settings")
        section[last] = value
    return result


def command_of(root: Path) -> str:
    """Return the command that made the runs below a folder."""
    file = root / "plan.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["command"]) if file.exists() else ""


def _changes(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    changes: list[tuple[str, Any]] = []
    if arguments.steps:
        limits = {"max_env_steps": arguments.steps, "max_learner_steps": 0, "max_wall_s": 0}
        changes += [(f"run.{name}", value) for name, value in limits.items()]
    if arguments.full:
        changes.append(("run.target_return", None))
    for word in arguments.set:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {word!r} is not KEY=VALUE, for example agent.batch_size=128")
        changes.append((key, yaml.safe_load(value)))
    return changes


def _options(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the options that decide the result, where they are not the defaults."""
    if arguments.name:
        yield from ("--name", arguments.name)
    if arguments.steps:
        yield from ("--steps", str(arguments.steps))
    if arguments.full:
        yield "--full"
    if arguments.set:
        yield from ("--set", *arguments.set)
    if arguments.test_episodes != 100:
        yield from ("--test-episodes", str(arguments.test_episodes))
    if arguments.sb3:
        yield from ("--sb3", arguments.sb3)
    if arguments.peer_every:
        yield from ("--peer-every", str(arguments.peer_every))


def _leaves(document: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, document
