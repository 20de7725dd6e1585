"""Write hashes beside the pins of requirements/{runtime,atari,mujoco,dev,docs,extras,sbom}.txt, for pip to hold to.

They are of the files that pip takes on linux/amd64 with each Python that is tested; Box2D has no others. Versions stay
as they are. torch is in a file of its own without a hash: its build is the machine's choice, from PyPI with CUDA, or a
smaller one for CPUs from the index that pip is given.
"""

from __future__ import annotations

import re
import sys

from scripts.image_locks import ROOT, hashed, normalised, pins

LOCKS = ("runtime.txt", "atari.txt", "mujoco.txt", "dev.txt", "docs.txt", "extras.txt", "sbom.txt")
PYTHONS = ("3.11", "3.12")

_HASH = re.compile(r"--hash=\S+")


def hashes_of(requirements: list[str]) -> dict[str, list[str]]:
    """Return the options `--hash=...` of each pin, by normalised name."""
    found: dict[str, set[str]] = {}
    for python in PYTHONS:
        for name, line in hashed(requirements, "--no-deps", python=python).items():
            found.setdefault(name, set()).update(_HASH.findall(line))
    return {name: sorted(options) for name, options in found.items()}


def main() -> int:
    """Write the hashes of every lock; return 0."""
    hashes = hashes_of(list(dict.fromkeys(pin for name in LOCKS for pin in pins(name).values())))
    for name in LOCKS:
        path, own = ROOT / "requirements" / name, pins(name)
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            package = normalised(line.partition("==")[0])
            lines.append(" ".join([own[package], *hashes[package]]) if package in own else line)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        print(f"{name}: {len(own)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
