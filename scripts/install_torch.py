"""Install the build of torch that this machine needs: `python -m scripts.install_torch cpu|cuda|none`; `make` chooses.

`cpu` downloads 0.2 GB from torch's own index, or takes the build from where pip is told to look. `cuda` downloads 3 GB
from the package index. macOS has one build, which both install. `none` is for replay servers, parameter servers and
their clients, which do without torch.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

from scripts.image_locks import CPU_INDEX, ROOT, pins

BUILDS = ("cpu", "cuda", "none")
INDEX_VARIABLE = "TORCH_CPU_INDEX"
"""The environment variable that names another index of CPU builds, such as a mirror."""


def pip(*arguments: str, hidden: bool = False) -> bool:
    """Run `pip install ARGUMENTS`; return whether it succeeded. What a hidden attempt prints is not shown."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments], capture_output=hidden, check=False).returncode == 0


def install(build: str, pip: Callable[..., bool] = pip) -> str:
    """Install a build; return why that is not possible, or nothing.

    Args:
        build: One of `BUILDS`.
        pip: Runs `pip install`, as `pip` above does.
    """
    requirement, index = pins("torch.txt")["torch"], os.environ.get(INDEX_VARIABLE, CPU_INDEX)
    if build not in BUILDS:
        return f"TORCH is {build!r}, allowed: {', '.join(BUILDS)}"
    if build != "none" and platform.system() == "Darwin":  # the package index has one build, for the CPU and Metal
        return "" if pip("--no-deps", requirement) else f"{requirement} was not installed: pip says why above"
    if build == "cuda" and not pip("-r", str(ROOT / "requirements" / "torch.txt")):
        return f"{requirement} with CUDA was not installed: pip says why above"
    if build != "cpu" or pip("--no-deps", f"{requirement}+cpu", hidden=True):
        return ""
    if pip("--no-deps", "--retries", "1", "--index-url", index, f"{requirement}+cpu"):
        return ""
    return (
        f"{requirement}+cpu (0.2 GB) was not installed from {index}: name a mirror by {INDEX_VARIABLE}=URL, "
        "or take the build with CUDA from the package index (3 GB) by `make TORCH=cuda ...`"
    )


def main() -> int:
    """Install the build that the command line names; return 0, or 1 if that was not possible."""
    reason = install(sys.argv[1] if len(sys.argv) == 2 else "")
    if reason:
        print(reason, file=sys.stderr)
    return int(bool(reason))


if __name__ == "__main__":
    sys.exit(main())
