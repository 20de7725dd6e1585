"""Groups of runs to compare: runs that differ only in their seed make one curve."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.bundle.files import CONFIG, is_bundle
from tidemill.config.load import by_names, from_document, read_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, TidemillError
from tidemill.scores import Score, read_scores
from tidemill.services.launcher.run.folder import check_is_run, name_of
from tidemill.settings.overlay import to_document

SCORES = "scores.csv"
_NOTHING = ("", "seed")  # what a number stands behind, and says nothing of the run
_LONGEST_LABEL = 40
_MOST_NAMES = 8
_FIRST = ("env.id", "agent.algorithm")  # say most of what a run was
_TRIAL = re.compile(r"trial-\d+")


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run.

    Attributes:
        folder: Of the run.
        scores: In the order they were made, at least one.
        seed: Of the run.
        is_whole: Whether the run has ended; it still trains, or was broken off, otherwise.
    """

    folder: Path
    scores: tuple[Score, ...]
    seed: int
    is_whole: bool

    def points(self, x: str) -> tuple[list[float], list[float]]:
        """Return a column of the scores, in rising order, and the mean return at each of its values."""
        newest = {float(getattr(score, x)): score.mean for score in self.scores}  # of two at one place the later
        return sorted(newest), [newest[value] for value in sorted(newest)]


_OF_ONE_RUN = re.compile(
    r"""
    run\.(name|root|seed)
    | table\.name | actor\.id  # where a sweep's runs share a replay service
    | (log|cluster|\w+\.server)\..* | learner\.sources\..+\.replay | replay\.(shard|storage\.folder)
    | launcher\.(endpoints|loggers|log_max_mib|status_page|status_page_port|view|view_every_s)
    """,
    re.VERBOSE,
)
"""Settings that runs of one curve may differ in: names, seeds, addresses, folders, and what a run is watched with."""


@dataclass(frozen=True)
class Group:
    """Runs of one curve.

    Attributes:
        label: Its name in the legend.
        env_id: Environment, as the settings name it.
        curves: One per run.
    """

    label: str
    env_id: str
    curves: tuple[Curve, ...]

    @property
    def averaged(self) -> tuple[Curve, ...]:
        """Those that have ended, or all if none has: one that has not would end the mean, too."""
        return tuple(curve for curve in self.curves if curve.is_whole) or self.curves


def describe_seeds(curves: Sequence[Curve]) -> str:
    """Return how many seeds curves are of: `3 seeds`, or `3 runs of 2 seeds` if runs share a seed."""
    count = len({curve.seed for curve in curves})
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    return seeds if count == len(curves) else f"{len(curves)} runs of {seeds}"


def find_groups(arguments: Sequence[str]) -> list[Group]:
    """Return the runs that arguments name, grouped, in the order they were named.

    Args:
        arguments: Folders of runs or folders that hold runs; `LABEL=FOLDER` puts all runs of a label into one group,
            unless there is a folder of that whole name.

    Raises:
        ConfigError: A folder is missing, holds no run with an evaluation, or is an exported policy.
    """
    folders: dict[str, dict[Path, Path]] = {}  # by whole path: a run that is named twice counts once
    labels: dict[str, str] = {}
    for argument in arguments:
        label, found, path = argument.partition("=")
        if Path(argument).exists():
            found = ""
        for folder in _runs(Path(os.path.expanduser(path if found else argument))):
            key = f"={label}" if found else json.dumps(_compared_settings(folder), sort_keys=True)
            folders.setdefault(key, {}).setdefault(folder.resolve(), folder)
            if found:
                labels[key] = label
    groups = []
    for key, found_runs in folders.items():
        members = tuple(found_runs.values())
        curves = tuple(map(_curve, members))
        env_id = str((read_document(members[0] / CONFIG).get("env") or {}).get("id", ""))
        groups.append(Group(labels.get(key) or _label(members), env_id, curves))
    return _named_by_settings(groups)


def _curve(folder: Path) -> Curve:
    seed = (read_document(folder / CONFIG).get("run") or {}).get("seed", RunSettings.seed)
    return Curve(folder, tuple(read_scores(folder / SCORES)), seed, (folder / "result.json").is_file())


def _named_by_settings(groups: Sequence[Group]) -> list[Group]:
    """Return groups that can be told apart: those with the same label are also named by what they differ in.

    A sweep's trials are named by that alone: `learning_rate 0.001, gamma 0.9`.
    """
    alike: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        alike.setdefault("" if _TRIAL.fullmatch(group.label) else group.label, []).append(number)
    named = list(groups)
    for label, numbers in alike.items():
        settings = [_compared_settings(groups[number].curves[0].folder) for number in numbers]
        names = _differing(settings)
        for number, values in zip(numbers, settings, strict=True):
            words = [f"{name.rpartition('.')[2]} {values.get(name)}" for name in names]
            if words:
                named[number] = replace(groups[number], label=", ".join([label, *words] if label else words))
    return named


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that runs differ in; of very many, as of two algorithms, some that tell all."""
    values = {
        name: [str(each.get(name)) for each in settings]
        for name in sorted({name for each in settings for name in each}, key=lambda name: (name not in _FIRST, name))
    }
    names = [name for name, found in values.items() if len(set(found)) > 1]
    if len(names) <= _MOST_NAMES:
        return names
    telling: list[str] = []
    for name in names:
        if _kinds(values, [*telling, name]) > _kinds(values, telling):
            telling.append(name)
    return telling


def _kinds(values: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    """Return how many kinds of runs these settings tell apart."""
    return len(set(zip(*(values[name] for name in names), strict=True))) or 1


def _runs(folder: Path) -> list[Path]:
    """Return the runs of a folder: itself, those directly below it, or of a sweep those of its trials."""
    is_run = (folder / SCORES).is_file()
    if is_run or is_bundle(folder) or not folder.exists():
        check_is_run(folder)
    candidates = [folder] if is_run else [*sorted(folder.glob("*/")), *sorted(folder.glob("trial-*/*/"))]
    runs = [
        path for path in candidates if (path / CONFIG).is_file() and not is_bundle(path) and read_scores(path / SCORES)
    ]
    if not runs:
        raise ConfigError(
            f"{folder} holds no run with an evaluation yet; name the folder of a run, or one with runs in it"
        )
    return runs


def _compared_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run by name, except those that runs of one curve may differ in."""
    document = read_document(folder / CONFIG)
    with contextlib.suppress(TidemillError):  # such as an algorithm of one's own that cannot be imported here
        document = to_document(from_document(RunConfig, document))  # with the settings of later releases
    return {name: value for name, value in by_names(document).items() if not _OF_ONE_RUN.fullmatch(name)}


def _label(folders: Sequence[Path]) -> str:
    """Return the common part of the names of a group's folders, or else all names; for `seed-1` the folder above."""
    names = [name_of(folder) for folder in folders]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = names[0] if len(names) == 1 else _without_number("".join(letters[0] for letters in same))
    if _without_number(common) not in _NOTHING:
        return common
    together = " + ".join(names)
    if all(_without_number(name) in _NOTHING for name in names) or len(together) > _LONGEST_LABEL:
        return folders[0].resolve().parent.name
    return together


def _without_number(name: str) -> str:
    return name.rstrip("0123456789").rstrip("-_. ")
