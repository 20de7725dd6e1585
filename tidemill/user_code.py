"""Imports modules that a user names in a setting: environments, algorithms, networks.

Processes are started with Python's safe path (`-P`), so that a file of the working directory never stands in for a
module of Tidemill, of its dependencies or of the standard library. A user's own modules there are found all the same,
after everything installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType


def import_user_module(name: str) -> ModuleType:
    """Import a module by its dotted path, from what is installed or else from the working directory.

    Raises:
        ImportError: There is no such module, or importing it failed.
    """
    _search_working_directory()
    return importlib.import_module(name)


def user_module_exists(name: str) -> bool:
    """Return whether a module of this dotted path can be found; its parent packages are imported."""
    _search_working_directory()
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _search_working_directory() -> None:
    folder = os.getcwd()
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)
