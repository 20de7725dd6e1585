"""Has each Python process whose PYTHONPATH holds this folder find pretended GPUs, once it imports torch."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_FOLDER = Path(__file__).parents[1]
_STAND_INS = ("cuda", "lstm_cell")
"""Files there, each with an `install`."""


class _Torch(Loader):
    """Imports torch between the library, which must be there before, and what stands in for torch.cuda."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        ctypes.CDLL(os.environ["TIDEMILL_PRETENDED_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
        self._real.exec_module(module)
        for name in _STAND_INS:
            spec = importlib.util.spec_from_file_location(f"pretended_{name}", _FOLDER / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            stand_in = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(stand_in)
            stand_in.install()


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Torch(spec.loader)
        return spec


if "TIDEMILL_PRETENDED_GPUS" in os.environ:
    sys.meta_path.insert(0, _Finder())
