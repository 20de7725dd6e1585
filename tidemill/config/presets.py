"""Presets: the configs that come with Tidemill, selected by name."""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.settings.check import nearest

FOLDER = Path(__file__).resolve().parents[1] / "presets"
"""The folder `configs` of the repository, which is installed with the package."""


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def find_config(name: str) -> Path:
    """Return the file that `--config` names: a path, or the name of a preset.

    Raises:
        ConfigError: It is neither; the message names the nearest.
    """
    path = Path(os.path.expanduser(name))
    if path.is_file() or path.parent != Path() or path.suffix:
        return path
    preset = FOLDER / f"{name}.yaml"
    if preset.is_file():
        return preset
    hint = nearest(name, preset_names()) or "; `tidemill configs` lists the presets"
    raise ConfigError(f"--config is {name!r}, which is neither a file nor a preset{hint}")
