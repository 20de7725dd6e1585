"""Versions of what a run's results depend on."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = ("tidemill", "torch", "numpy", "gymnasium", "ale-py", "grpcio", "protobuf")


def versions() -> dict[str, str]:
    """Return the versions of Python and of each package that decides results, or `not installed`."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
