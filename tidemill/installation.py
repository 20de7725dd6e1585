"""This installation: how its command is typed, which versions it holds, and how to install what is missing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).absolute().parents[1]  # of a checkout; in a wheel, where packages are
_TARGETS = {"learn": "-B install", "box2d": "-B install", "atari": "atari", "mujoco": "mujoco"}
"""What installs an extra in a checkout; `-B` because a stamp says that all was installed before."""

_OWN = "TIDEMILL_REQUIREMENTS in .env and build the images again (`docker compose build`)"
_BUILT = {"atari": "set TIDEMILL_ATARI=1 in .env and build the images again (`docker compose build`)"}
"""The same in a container, which installs nothing."""

_PACKAGES = ("tidemill", "torch", "numpy", "gymnasium", "ale-py", "grpcio", "protobuf")
"""Those that decide results."""


def command_name() -> str:
    """Return `tidemill` if the PATH finds this installation's, else the way to it from here."""
    script = Path(sys.executable).parent / "tidemill"
    found = shutil.which("tidemill")
    if found and Path(found).absolute() == script:
        return "tidemill"
    called = script if script.exists() else Path(sys.executable)
    path = min(str(called), os.path.relpath(called), key=len)
    return shlex.quote(path) if script.exists() else f"{shlex.quote(path)} -m tidemill.services.launcher"


def typed(*words: str | Path) -> str:
    """Return a command of this installation as one types it here: `tidemill resume 'my runs/a'`."""
    return f"{command_name()} {shlex.join(map(str, words))}"


def activation() -> str:
    """Return the shell command that puts this installation on the PATH; empty if there is none."""
    script = Path(sys.executable).parent / "activate"
    return f". {min(str(script), os.path.relpath(script), key=len)}" if script.exists() else ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of each of those packages, or `not installed`."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra such as `learn`, in the way that this installation was made."""
    if "TIDEMILL_IMAGE" in os.environ:  # set by the images
        return _BUILT.get(extra, f"list the packages of tidemill[{extra}] in the file of {_OWN}")
    return _make(_TARGETS[extra]) if extra in _TARGETS and is_made() else f"pip install 'tidemill[{extra}]'"


def how_to_repair(requirement: str) -> str:
    """Return the command that installs a package as Tidemill needs it, e.g. `numpy>=2.1`, likewise."""
    return _make(_TARGETS["learn"]) if is_made() else f"pip install '{requirement}'"


def is_made() -> bool:
    """True if `make` made this installation: its environment is the .venv of the checkout that it runs from."""
    return (_ROOT / "Makefile").exists() and Path(sys.prefix) == _ROOT / ".venv"


def _make(target: str) -> str:
    here = Path.cwd() == _ROOT
    return f"make {target}" if here else f"make -C {min(str(_ROOT), os.path.relpath(_ROOT), key=len)} {target}"
