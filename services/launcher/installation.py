"""This installation: how its `tidemill` is called from here, and which versions it holds."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path


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


_PACKAGES = ("tidemill", "torch", "numpy", "gymnasium", "ale-py", "grpcio", "protobuf")


def versions() -> dict[str, str]:
    """Return the versions of Python and of each package that decides results, or `not installed`."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
