"""Names that a package offers, listed once in its `__init__.pyi` and imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # importing it from typing would take most of the time that `import tidemill` takes
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def homes(package: str) -> dict[str, str]:
    """Return the module of each name that a package's stub lists, as `from MODULE import NAME as NAME`."""
    found = {}
    with open(f"{sys.modules[package].__file__}i", encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                _, module, _, name, *_ = line.split()
                found[name] = module
    return found


def offered(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, for the names that its stub lists."""
    module_of = homes(package)
    names = sorted(module_of)

    def get(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
        """Return a public name from the module that holds it."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return names, get, names.copy
