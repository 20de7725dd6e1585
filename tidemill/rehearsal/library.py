"""Builds the library that makes a CPU build of torch accept CUDA tensors, and loads it; imports no torch."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from tidemill.errors import FailedPrecondition
from tidemill.temporary_folder import temporary_folder

_SOURCE = Path(__file__).with_name("pretended_cuda.cpp")
_BUILD_S = 600.0
"""A core needs ten seconds for the longer of two sources, and may be shared by thirty processes."""
_SHOWN_LINES = 5


def compiler() -> str | None:
    """Return the path of the C++ compiler that builds it; None if there is none."""
    return shutil.which("g++") or shutil.which("c++")


def load() -> None:
    """Build the library, which takes a core two seconds, and load it into this process, which then imports torch.

    Raises:
        FailedPrecondition: torch is imported already, is not installed, or there is no C++ compiler that can build it.
    """
    if "torch" in sys.modules:
        raise FailedPrecondition("a rehearsal must begin before torch is imported; start a separate process")
    with temporary_folder("rehearsal") as folder:
        ctypes.CDLL(str(build(_SOURCE, Path(folder))), mode=ctypes.RTLD_GLOBAL)  # stays mapped when the file is gone


def build(source: Path, folder: Path) -> Path:
    """Build a library with torch's headers; return where it is.

    Args:
        source: Of it, in C++20.
        folder: Where it is written.

    Raises:
        FailedPrecondition: torch is not installed, or there is no C++ compiler that can build it in time.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise FailedPrecondition("a rehearsal needs torch, which is not installed")
    if (compile_ := compiler()) is None:
        raise FailedPrecondition("a rehearsal needs a C++ compiler; install g++")
    torch, library = Path(found.submodule_search_locations[0]), folder / f"{source.stem}.so"
    hidden = (
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
    )  # or torch would use its inline functions for its own
    options = ["-std=c++20", "-O0", "-DNDEBUG", "-fPIC", "-shared", *hidden, f"-I{torch / 'include'}"]
    options += [str(source), "-o", str(library)]
    options += [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    try:
        built = subprocess.run([compile_, *options], capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FailedPrecondition(
            f"a rehearsal needs a library that {compile_} did not build in {_BUILD_S:g} s"
        ) from error
    if built.returncode:
        said = "\n".join(built.stderr.strip().splitlines()[:_SHOWN_LINES])
        raise FailedPrecondition(f"a rehearsal needs torch's headers, and a compiler for C++20:\n{said}")
    return library
