"""Runs to compare: those that differ by nothing but their seed make one curve."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.bundle.files import CONFIG, portable_settings
from tidemill.errors import ConfigError
from tidemill.scores import Score, read_scores

SCORES = "scores.csv"
_NOTHING = ("", "seed")  # what a number stands behind, and says nothing of the run
_LONGEST_LABEL = 40


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run.

    Attributes:
        folder: Of the run.
        scores: In the order they were made, at least one.
    """

    folder: Path
    scores: tuple[Score, ...]

    def points(self, x: str) -> tuple[list[float], list[float]]:
        """Return a column of the scores, in rising order, and the mean return at each of its values."""
        newest = {float(getattr(score, x)): score.mean for score in self.scores}  # of two at one place the later
        return sorted(newest), [newest[value] for value in sorted(newest)]


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


def find_groups(arguments: Sequence[str]) -> list[Group]:
    """Return the runs that arguments name, grouped, in the order they were named.

    Args:
        arguments: Folders of runs or folders that hold runs; `LABEL=FOLDER` puts all runs of a label into one group.

    Raises:
        ConfigError: A folder holds no run with an evaluation.
    """
    folders: dict[str, list[Path]] = {}
    labels: dict[str, str] = {}
    for argument in arguments:
        label, found, path = argument.partition("=")
        for folder in _runs(Path(path if found else argument)):
            key = f"={label}" if found else _settings_key(folder)
            folders.setdefault(key, []).append(folder)
            if found:
                labels[key] = label
    groups = []
    for key, members in folders.items():
        curves = tuple(Curve(folder, tuple(read_scores(folder / SCORES))) for folder in dict.fromkeys(members))
        env_id = str(portable_settings(members[0] / CONFIG).get("env", {}).get("id", ""))
        groups.append(Group(labels.get(key) or _label(members), env_id, curves))
    return groups


def _runs(folder: Path) -> list[Path]:
    """Return the runs of a folder: itself, or those directly below it."""
    candidates = [folder] if (folder / CONFIG).is_file() and (folder / SCORES).is_file() else sorted(folder.glob("*/"))
    runs = [path for path in candidates if (path / CONFIG).is_file() and read_scores(path / SCORES)]
    if not runs:
        raise ConfigError(
            f"{folder} holds no run with an evaluation yet; name the folder of a run, or one with runs in it"
        )
    return runs


def _settings_key(folder: Path) -> str:
    settings = portable_settings(folder / CONFIG)
    for name in ("name", "seed"):
        settings.get("run", {}).pop(name, None)
    return json.dumps(settings, sort_keys=True)


def _label(folders: Sequence[Path]) -> str:
    """Return what the names of a group's folders have in common, or else all; of `seed-1` the folder above."""
    names = [folder.name for folder in folders]
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
