"""Import of user code that a setting names: environments, algorithms, networks, losses, callbacks.

Processes are started with Python's safe path (`-P`), so that a file of the working directory never stands in for a
module of Tidemill, of its dependencies or of the standard library. A user's own modules there are found all the same,
after everything installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from tidemill.errors import ConfigError, described
from tidemill.settings.check import nearest

imported_for_a_run: ContextVar[str] = ContextVar("imported_for_a_run", default="")
"""Name of the user's module that is being imported; empty if none is."""


def import_user_module(name: str) -> ModuleType:
    """Import a module by its dotted path, from what is installed or else from the working directory.

    Raises:
        ImportError: There is no such module, or importing it failed.
    """
    _search_working_directory()
    before = imported_for_a_run.set(name)
    try:
        return importlib.import_module(name)
    finally:
        imported_for_a_run.reset(before)


def check_user_module(setting: str, path: str) -> None:
    """Raise ConfigError unless the module that a setting names can be found; its parent packages are imported.

    Args:
        setting: Its name, e.g. `agent.loss`.
        path: Its value, `module` or `module:name`.
    """
    module = path.partition(":")[0]
    _search_working_directory()
    try:
        exists = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        exists = False
    if not exists:
        where = f"install it, or put it into {os.getcwd()}"
        raise ConfigError(f"{setting} is {path!r}, but there is no module {module!r}: {where}")


def user_object(setting: str, path: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Return the object that a setting names by `module:name`.

    Args:
        setting: Its name, for messages, e.g. `agent.loss`.
        path: Its value; `name` may have dots, e.g. `my_module:MyClass.make`.

    Raises:
        ConfigError: The value is not `module:name`, the module cannot be imported, or it has no such name.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{setting} is {path!r}, allowed: module:name")
    try:
        found: Any = import_user_module(module_name)
    except Exception as error:  # whatever the user's module raises
        reason = described(error)
        raise ConfigError(f"{setting} is {path!r}, but importing {module_name} failed: {reason}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [key for key in vars(found) if not key.startswith("_")])
            raise ConfigError(f"{setting} is {path!r}, but {module_name} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def _search_working_directory() -> None:
    folder = os.getcwd()
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)
