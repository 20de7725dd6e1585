"""`tidemill doctor`: checks what a run needs from this machine, and reports what to do about anything missing."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill import kernel
from tidemill.config.sections import RunConfig
from tidemill.services.launcher.installation import activation, command_name, versions

_ABOUT = "Check what a run needs from this machine, and print what to do about anything missing."

_MIN_FREE_BYTES = 5 * 1024**3
_PROBE_TIMEOUT_S = 120.0
_NEEDED = ("torch", "gymnasium", "safetensors", "tensorboard", "matplotlib", "imageio_ffmpeg")
_OPTIONAL = {"ale_py": "atari", "Box2D": "box2d", "pygame": "box2d"}


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        mark: `ok`, `note` (something is missing that not every run needs) or `FAIL`.
        text: What was found.
        advice: What to do; empty if nothing.
    """

    mark: str
    text: str
    advice: str = ""


def doctor(argv: Sequence[str]) -> int:
    """Print every finding; return 0, or 1 if a run would fail."""
    parser = argparse.ArgumentParser(prog="tidemill doctor", description=_ABOUT)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where runs are kept (default: runs)")
    root = parser.parse_args(list(argv)).root
    checks: list[Callable[[], list[Finding]]] = [
        _python, _command, _packages, _kernel, _gpu, _roms, _ports, _sockets,
    ]  # fmt: skip
    findings = [finding for check in checks for finding in check()] + _disk(root)
    for finding in findings:
        print(f"{finding.mark:4}  {finding.text}")
        if finding.advice:
            print(f"      -> {finding.advice}")
    failures = sum(finding.mark == "FAIL" for finding in findings)
    print("\n" + (f"{failures} to fix before training" if failures else "ready to train"))
    return 1 if failures else 0


def _python() -> list[Finding]:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    text = f"Python {platform.python_version()} on {machine}"
    if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)):
        return [Finding("ok", text)]
    return [Finding("note", text, "not tested with this Python; 3.11 to 3.13 are")]


def _command() -> list[Finding]:
    name = command_name()
    if name == "tidemill":
        return [Finding("ok", "`tidemill` is on the PATH")]
    advice = f"`{activation()}` puts it there for this shell; " if activation() else ""
    return [Finding("note", "`tidemill` is not on the PATH, or another one is", f"{advice}or call it as `{name}`")]


def _packages() -> list[Finding]:
    known = versions()
    found = [Finding("ok", ", ".join(f"{name} {version}" for name, version in known.items()))]
    for module in (*_NEEDED, *_OPTIONAL):
        if importlib.util.find_spec(module) is None:
            mark, extra = ("FAIL", "learn") if module in _NEEDED else ("note", _OPTIONAL[module])
            found.append(Finding(mark, f"{module} is not installed", f"pip install 'tidemill[{extra}]'"))
    return found


def _kernel() -> list[Finding]:
    if kernel.available:
        return [Finding("ok", "the compiled kernel is in use")]
    advice = "batches decode more slowly on several threads; install a C compiler and then Tidemill again"
    return [Finding("note", f"the compiled kernel is not in use: {kernel.reason}", advice)]


def _gpu() -> list[Finding]:
    """Ask torch in a separate process: the launcher itself never imports it."""
    code = "import torch; print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])"
    answer = _python_says(code)
    if answer is None:
        return [Finding("FAIL", "torch cannot be imported", "pip install 'tidemill[learn]'")]
    if answer == "[]":
        return [
            Finding("note", "no GPU: learning runs on the CPU", "fast enough for vector observations; Atari takes long")
        ]
    return [Finding("ok", f"GPU: {answer}")]


def _roms() -> list[Finding]:
    if importlib.util.find_spec("ale_py") is None:
        return []
    answer = _python_says("from ale_py.roms import get_all_rom_ids; print(len(get_all_rom_ids()))")
    if answer and int(answer):
        return [Finding("ok", f"Atari: {answer} games")]
    return [Finding("note", "Atari: ale-py has no ROMs", "pip install --force-reinstall ale-py")]


def _ports() -> list[Finding]:
    """The ports of services started by hand; `tidemill train` uses sockets and needs none."""
    cluster = RunConfig().cluster
    addresses = [("replay", address) for address in cluster.replay]
    return [_port(*pair) for pair in (*addresses, ("params", cluster.params), ("learner", cluster.learner))]


def _port(name: str, address: str) -> Finding:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            advice = f"only services started by hand use it; set cluster.{name} to a free port for them"
            return Finding("note", f"{name}: port {port} is not free ({error.strerror})", advice)
    return Finding("ok", f"{name}: port {port} is free")


def _sockets() -> list[Finding]:
    folder = tempfile.gettempdir()
    if len(folder) > 60:  # a socket's path may have 107 bytes
        return [Finding("FAIL", f"a long path for sockets: {folder}", "set TMPDIR to a shorter one")]
    return [Finding("ok", f"sockets of `tidemill train` in {folder}")]


def _disk(root: Path) -> list[Finding]:
    existing = next(path for path in (root.resolve(), *root.resolve().parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    text = f"{free_bytes / 1024**3:.1f} GiB free for {root}"
    if not os.access(existing, os.W_OK):
        return [Finding("FAIL", f"{existing} cannot be written", "choose another folder with --run.root")]
    if free_bytes < _MIN_FREE_BYTES:
        return [
            Finding(
                "note", text, "long runs with large networks need more; lower paramserver.keep_versions to save space"
            )
        ]
    return [Finding("ok", text)]


def _python_says(code: str) -> str | None:
    try:
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return answer.stdout.strip()
