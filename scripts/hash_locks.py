"""Write the locks that `make` installs, requirements/{runtime,atari,mujoco,dev,docs,extras,sbom,lock}.txt, with uv.

A lock names every file of its versions by hash, so that one lock serves every Python and machine. pip takes wheels
alone (`--only-binary`): nothing is compiled. Versions and markers stay as they are. To change one, edit its line and
run `make lock`. Each lock is also resolved for every Python and machine in `PYTHONS` and `PLATFORMS`, which fails where
a wheel is missing. torch is in a file without hashes, because its build is the machine's choice (install_torch.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from scripts.image_locks import ROOT

LOCKS = ("runtime.txt", "atari.txt", "mujoco.txt", "dev.txt", "docs.txt", "extras.txt", "sbom.txt", "lock.txt")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
OLDEST_MACOS = "14.0"

_WHEELS_ALONE = ("--no-deps", "--only-binary", ":all:", "--no-header", "--no-annotate")


def split(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of a lock that come before its pins, and its pins without hashes."""
    lines = [line.removesuffix("\\").strip() for line in text.splitlines()]
    pins = [re.sub(r"\s*--hash=\S+", "", line) for line in lines if re.match(r"[\w.-]+==", line)]
    return [line for line in lines if line.startswith(("#", "-r "))], pins


def compiled(pins: list[str], *options: str) -> str:
    """Resolve pins with `uv pip compile`.

    Raises:
        subprocess.CalledProcessError: a version has no wheel for what the options name; uv has said which.
    """
    command = [sys.executable, "-m", "uv", "--quiet", "--no-config", "pip", "compile", *_WHEELS_ALONE, *options, "-"]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": OLDEST_MACOS}
    text = "\n".join(pins)
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def main() -> int:
    """Write the locks that the command line names, or all; return 0."""
    for name in sys.argv[1:] or LOCKS:
        path = ROOT / "requirements" / name
        header, pins = split(path.read_text(encoding="utf-8"))
        for python in PYTHONS:
            for platform in PLATFORMS:
                compiled(pins, "--python-version", python, "--python-platform", platform)
        lock = compiled(
            pins, "--universal", "--python-version", PYTHONS[0], "--generate-hashes", "--emit-build-options"
        )
        path.write_text("\n".join([*header, lock.replace("\n\n", "\n", 1)]), encoding="utf-8")
        print(f"{name}: {len(pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
