"""Checks of installed software: Python, packages, the kernel, drivers, games, containers."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tidemill import container_limits, kernel
from tidemill.installation import activation, command_name, how_to_install, how_to_repair, is_made, versions
from tidemill.services.tools.doctor.finding import Finding, python_says, says

_NEEDED = ("torch", "gymnasium", "safetensors", "tensorboard", "matplotlib", "imageio_ffmpeg", "rich")
_OPTIONAL = {"ale_py": "atari", "Box2D": "box2d", "pygame": "box2d"}
_GRAFANA = ("deploy/grafana/provisioning", "deploy/grafana/dashboards", "deploy/grafana/admin-password.example")
_MOUNTED = ("configs", "deploy/prometheus", *_GRAFANA, "docs")
"""What docker-compose.yml mounts of a checkout."""


def python() -> list[Finding]:
    """Return the interpreter and the machine."""
    machine = f"{platform.system()} {platform.machine()}, {container_limits.cpus()} cores"
    text = f"Python {platform.python_version()} on {machine}"
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return [Finding("ok", text)]
    return [Finding("note", text, "Tidemill is for Python 3.11 to 3.14; docs/installation.md says what was tested")]


def command() -> list[Finding]:
    """Check that the shell finds `tidemill`, and that it is this installation."""
    name = command_name()
    if name == "tidemill":
        return [Finding("ok", "`tidemill` is on the PATH")]
    advice = f"`{activation()}` puts it there for this shell; " if activation() else ""
    return [Finding("note", "`tidemill` is not on the PATH, or another one is", f"{advice}or call it as `{name}`")]


def _has_no_wheel(module: str) -> bool:
    """True if a package has no wheel here: Box2D has none after Python 3.13, nor for Linux except on x86-64."""
    is_made_for = platform.machine() == "x86_64" or platform.system() == "Darwin"
    return module == "Box2D" and (sys.version_info >= (3, 14) or not is_made_for)


def packages() -> list[Finding]:
    """Return versions, what is not installed, and what is of a version that Tidemill does not work with."""
    known = versions()
    found = [Finding("ok", ", ".join(f"{name} {version}" for name, version in known.items()))]
    for module in (*_NEEDED, *_OPTIONAL):
        if importlib.util.find_spec(module) is None:
            mark, extra = ("FAIL", "learn") if module in _NEEDED else ("note", _OPTIONAL[module])
            if _has_no_wheel(module):
                found.append(Finding(mark, "Box2D has no wheel for this Python and machine: no LunarLander"))
            else:
                found.append(Finding(mark, f"{module} is not installed", how_to_install(extra)))
    return found + outside_bounds(metadata.requires("tidemill") or [])


def outside_bounds(requirements: Sequence[str]) -> list[Finding]:
    """Return the packages that are installed in a version outside what the requirements allow.

    Args:
        requirements: As an installed package states them, e.g. `protobuf<8,>=7.35.1` or `torch>=2; extra == "learn"`;
            other comparisons than `>=` and `<` are left to pip.
    """
    found = []
    for requirement in requirements:
        stated = requirement.partition(";")[0].strip()
        name = re.split(r"[^\w.-]", stated)[0]
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        bounds = re.findall(r"(>=|<)\s*([\d.]+)", stated)
        if not all((_numbers(installed) >= _numbers(bound)) == (kind == ">=") for kind, bound in bounds):
            text = f"{name} {installed} is installed, and Tidemill needs {stated}"
            found.append(Finding("FAIL", text, how_to_repair(stated)))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with, without zeros at their end."""
    numbers = [int(number) for number in (re.match(r"\d+(\.\d+)*", version) or ["0"])[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def compiled_kernel() -> list[Finding]:
    """Check that tidemill/kernel was built."""
    if kernel.available:
        return [Finding("ok", "the compiled kernel is in use")]
    again = how_to_install("learn") if is_made() else "Tidemill again"
    advice = f"batches decode more slowly on several threads; install a C compiler and then {again}"
    return [Finding("note", f"the compiled kernel is not in use: {kernel.reason}", advice)]


def roms() -> list[Finding]:
    """Return a finding on the number of Atari games; nothing without the emulator."""
    if importlib.util.find_spec("ale_py") is None:
        return []
    answer = python_says("from ale_py.roms import get_all_rom_ids; print(len(get_all_rom_ids()))")
    if answer and int(answer):
        return [Finding("ok", f"Atari: {answer} games")]
    return [Finding("note", "Atari: ale-py has no ROMs", "pip install --force-reinstall ale-py")]


def docker() -> list[Finding]:
    """Check that `docker compose up` would find its client, its plugin and an engine."""
    if shutil.which("docker") is None:
        return [
            Finding(
                "note", "no Docker: only `docker compose up` needs it", "install Docker Engine and its compose plugin"
            )
        ]
    if says("docker", "compose", "version") is None and says("docker-compose", "version") is None:
        return [Finding("note", "Docker has no compose plugin", "install docker-compose-plugin, version 2")]
    engine = says("docker", "version", "--format", "{{.Server.Version}}")
    if not engine:
        advice = "start it, or have this user join the group docker; only `docker compose up` needs it"
        return [Finding("note", "no Docker engine answers", advice)]
    return [Finding("ok", f"Docker engine {engine} with compose"), *closed_to_containers()]


def closed_to_containers(checkout: Path = Path()) -> list[Finding]:
    """Return a finding if containers of Compose could not read what they need of a checkout; nothing without one."""
    if not all(os.path.exists(checkout / name) for name in _MOUNTED):
        return []
    closed = [name for name in _MOUNTED if not all(map(_is_for_all, (checkout / name, *(checkout / name).rglob("*"))))]
    if not closed:
        return []
    text = f"containers cannot read {', '.join(closed)}: they run as other users"
    return [Finding("note", text, f"`chmod -R go+rX {' '.join(closed)}`, needed for `docker compose up` alone")]


def _is_for_all(path: Path) -> bool:
    """True if every user may read a file, or enter a folder, too, or if it is not there any more."""
    try:
        mode = path.lstat().st_mode  # of a link, which is for all
    except OSError:  # in a folder that is closed itself, too
        return True
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted == wanted
